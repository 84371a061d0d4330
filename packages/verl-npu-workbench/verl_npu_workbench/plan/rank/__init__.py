"""Runs one rank: `python -m verl_npu_workbench.plan.rank` reads a job from stdin and writes its cost to stdout."""
