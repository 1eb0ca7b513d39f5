"""Predicted beside measured: published and own runs, built into scenarios and simulated."""
