"""Inspects a stuck job: what each process does, and which process the others wait for. Changes nothing."""
