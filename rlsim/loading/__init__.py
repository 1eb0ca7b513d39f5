"""From a file or a name to a resolved scenario: references, inheritance, overrides, messages, variation."""
