"""A job that does not go on: what each process does, and for whom the others wait. Nothing is changed."""
