"""Tools for people who maintain the patches. No training process loads them."""
