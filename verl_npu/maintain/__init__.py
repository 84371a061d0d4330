"""Tools for maintainers of the patches; no training process loads them."""
