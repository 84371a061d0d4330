"""`python -m verl_npu`, the same command as `verl-npu`."""

import os
import signal


def run() -> None:
    """Run the command. If the user presses Ctrl-C while the command is still being imported, the process ends with the
    usual exit status for Ctrl-C."""
    # If the signal is ignored, as under nohup, it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from . import cli

    cli.run()


if __name__ == "__main__":
    run()
