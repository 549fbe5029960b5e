"""The D-Bus service."""
