"""`python -m verl_npu` is the command `verl-npu`."""

from .tools.cli import main

if __name__ == "__main__":
    main(prog_name="verl-npu")
