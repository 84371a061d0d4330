"""What a job wrote: its lines without what Ray and others put around them, and the steps of its training."""
