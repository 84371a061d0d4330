"""The acceptance test of NPUs: stages that check the NPUs, and a record of the results.

`running` starts each stage in a separate process, `stages` contains the stages, and `bundle` makes the file to send.
"""
