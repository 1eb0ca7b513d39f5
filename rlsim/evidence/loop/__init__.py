"""The real loop beside its prediction: configurations run and compared, journals replayed by the simulation."""
