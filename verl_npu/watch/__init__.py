"""A training that is running: where its time goes, its curves, and what is odd about it."""
