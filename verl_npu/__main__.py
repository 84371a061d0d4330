"""`python -m verl_npu` is the command `verl-npu`."""

import os
import signal


def run() -> None:
    """Run the command; Ctrl-C ends it in the same way while it is still being imported."""
    # Where a signal is ignored, as by nohup, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from . import cli

    cli.run()


if __name__ == "__main__":
    run()
