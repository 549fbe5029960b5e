"""Hypervisor device nodes: events, identity and usability."""
