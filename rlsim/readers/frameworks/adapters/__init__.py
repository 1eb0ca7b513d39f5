"""What the configurations of single frameworks say, one module each (how one is written: :mod:`..rules`)."""
