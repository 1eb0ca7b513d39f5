"""Devices: datasheet profiles and measured operator tables."""
