"""`python -m verl_npu` is the command `verl-npu`."""

from .tools.cli import run

if __name__ == "__main__":
    run()
