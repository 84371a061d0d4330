"""The program of one rank: `python -m verl_npu.plan.rank` reads a job from stdin and writes what it cost to stdout."""
