"""The cost model's assumptions beside measurements of a device."""
