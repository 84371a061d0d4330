"""Plans whether a job fits into its NPUs' memory, what takes the memory, and how long a step takes. SIMULATED.

verl's own workers run in phantom memory; one process stands for all ranks of its kind (`rank`). verl's workers cannot
show the rollout engine and memory outside tensors, so formulas add these (`rollout`, `hardware`). Fine-tuning has no
rollout: the loop of its own trainer is run (`fine_tuning`).
"""
