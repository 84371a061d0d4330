"""Readers of a job's logs: lines without the prefixes of Ray and others, and the steps of the training."""
