"""Everything random about a run, drawn before it is priced: batches, lengths and the verifications they take."""
