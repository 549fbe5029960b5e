"""devward: the warden of a node's accelerator devices."""

__version__ = "0.1.0"
