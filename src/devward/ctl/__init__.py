"""devwardctl: devward for a person at a terminal, or in a script. A client of the message bus and of nothing else in the daemon."""
