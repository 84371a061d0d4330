"""Inspection of a hung job: what each process is doing, and which process the others wait for. Nothing is changed."""
