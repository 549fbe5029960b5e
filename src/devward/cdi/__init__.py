"""Container Device Interface files: what they should say, what they say, and the repair."""
