"""Files and names: bounded reading, whole writing, archives, YAML, kept values, the kernel, journals, progress."""
