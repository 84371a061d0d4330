"""Checkpoints of trainings made into models of Hugging Face's format, and read back from the shards."""
