"""The acceptance run of NPUs: stages that check the NPUs, and a record of the NPUs' results.

`running` starts each stage in a process of its own, `stages` contains the stages, and `bundle` makes the file to send.
"""
