"""plan.sh: make the environment of a verl revision, and run `verl-npu plan` in it."""

from __future__ import annotations

import sys

import rehearse

if __name__ == "__main__":
    sys.exit(rehearse.main("plan.sh", sys.argv[1:], "plan"))
