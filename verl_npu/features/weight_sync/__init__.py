"""Weights go from trainer to rollout over HCCL, checked on every rank."""
