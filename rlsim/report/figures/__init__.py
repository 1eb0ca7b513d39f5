"""Pictures: one function for each, from a record to a matplotlib figure."""
