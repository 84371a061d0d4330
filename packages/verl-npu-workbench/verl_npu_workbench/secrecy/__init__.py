"""What leaves for strangers: secrets, names, addresses and paths are known in texts, and variables in a sandbox."""
