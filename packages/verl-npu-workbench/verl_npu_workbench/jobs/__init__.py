"""From a launch script to its job: what it starts, the settings composed for it, and its parallel layout.

`capture` runs a script in a sandbox and notes what it calls, `trainer` finds the trainer among that, `job` has Hydra
compose its settings (once: a `Job` is passed on), `keys` names upstream's settings; `layout`: parallel sizes.
"""
