"""Finds the job that a launch script starts: its trainer, its composed settings, and its parallel layout.

`capture` runs a script in a sandbox and records the programs that the script calls. `trainer` finds the trainer among
these calls. `job` runs Hydra once to compose the trainer's settings. `keys` has the keys of upstream's settings, and
`layout` reads the parallel sizes.
"""
