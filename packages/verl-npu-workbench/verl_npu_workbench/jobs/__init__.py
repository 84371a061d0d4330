"""Finds the job that a launch script starts: its trainer, its composed settings, and its parallel layout.

`capture` runs a script in a sandbox and records the programs that it calls. `trainer` finds the trainer among these
calls. `job` lets Hydra compose the trainer's settings, once. `keys` names upstream's settings, and `layout` reads the
parallel sizes.
"""
