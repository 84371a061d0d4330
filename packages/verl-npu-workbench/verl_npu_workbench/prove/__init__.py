"""The acceptance run of NPUs: stages that judge for themselves, and a record of what the NPUs did.

`running` starts each stage in a process of its own, `stages` has what they do, `bundle` is what is sent to others.
"""
