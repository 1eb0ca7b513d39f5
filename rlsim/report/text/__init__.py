"""Answers as text for a terminal: one module for each answer."""
