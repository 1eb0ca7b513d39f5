"""How sure an answer is: slopes of its phases, draws of terms and group deviations, intervals, nearest evidence."""
