"""A whole run: many steps whose work evolves, and what else takes time."""
