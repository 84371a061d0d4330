"""Rehearsals: a job for many NPUs is scaled down and run on virtual NPUs, in a sandbox.

`preparation` makes a small model and data, `layout` and `rules` say what is scaled and why, `training` runs it, and
`verdict` says how it ended and whose fault a failure is.
"""
