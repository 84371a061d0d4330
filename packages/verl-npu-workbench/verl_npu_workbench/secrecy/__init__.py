"""Keeps private data from strangers: secrets, names, addresses, and paths in texts, and variables in a sandbox."""
