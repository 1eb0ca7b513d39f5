"""Python launchers and training scripts, read for what they hand to a framework; nothing of them is executed."""
