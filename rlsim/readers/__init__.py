"""Other people's files as scenario values: configurations of frameworks, traces of lengths, logs of runs."""
