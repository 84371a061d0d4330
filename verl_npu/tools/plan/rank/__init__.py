"""One rank: `python -m verl_npu.tools.plan.rank` reads a job from stdin and writes what it cost to stdout."""
