"""Measuring devices and importing measurements of others; torch only here, lazily."""
