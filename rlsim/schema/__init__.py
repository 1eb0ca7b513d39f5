"""What a user writes: frozen, strict pydantic models, documented field by field."""
