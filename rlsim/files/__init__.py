"""Files and names: bounded reading, whole writing, archives, YAML, stored values, the kernel, journals, progress."""
