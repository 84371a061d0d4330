"""Rehearsals: a launch script for many NPUs is captured in a sandbox, scaled, and run on virtual NPUs.

`capture` finds out what a script would start, `composition` what its settings come to, `rules` what is scaled and why,
`training` runs it, and `verdict` says how it ended and whose fault a failure is.
"""
