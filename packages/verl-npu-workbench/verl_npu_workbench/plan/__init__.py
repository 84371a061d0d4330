"""Plans: will a job fit into its NPUs' memory, what holds it, and how long a step takes. SIMULATED.

verl's own workers run in phantom memory: one process stands for all ranks of its kind (`rank`). What no worker of
verl's can show, the rollout engine and the memory that is no tensor's, is added by rule (`rollout`, `hardware`).
Fine-tuning has no rollout, and its trainer's own loop is run (`fine_tuning`).
"""
