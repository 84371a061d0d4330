"""Readers of a job's logs. They remove the prefixes that Ray and others add to lines, and read the steps of the
training."""
