"""Reclaiming vNPUs that nobody owns: what is decided, apart from every I/O. Pure."""
