"""Rehearsals: scale a job for many NPUs down and run it on virtual NPUs, in a sandbox.

`preparation` makes a small model and data, `layout` and `rules` scale the settings, `training` runs the job, and
`outcome` says how it ended and who caused a failure.
"""
