"""Protects private data: it removes secrets, names, addresses, and paths from texts, and limits the environment
variables in a sandbox."""
