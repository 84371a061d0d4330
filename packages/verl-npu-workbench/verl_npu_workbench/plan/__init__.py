"""Plans whether a job fits into its NPUs' memory, what takes up the memory, and how long a step takes. SIMULATED.

verl's own workers run in phantom memory; one process stands for all ranks of its kind (`rank`). These workers show
neither the memory of the rollout engine nor the memory outside tensors, so formulas add both (`rollout`, `hardware`).
Fine-tuning has no rollout; a plan runs the training loop of its own trainer (`fine_tuning`).
"""
