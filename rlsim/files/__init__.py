"""Files and their names: bounded reading, whole writing, archives, YAML with places, journals, progress."""
