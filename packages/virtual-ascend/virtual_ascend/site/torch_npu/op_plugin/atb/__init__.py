"""The operators of ATB, which a library of their own registers."""
