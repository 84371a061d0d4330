"""`python -m verl_npu_workbench.checkpoint.upstream …`: upstream's `verl.model_merger` where shards name NPUs."""

from __future__ import annotations

import runpy

from .npu_names import allow_npu_names


def main() -> None:
    """Run upstream's merger with the arguments of this process."""
    allow_npu_names()
    runpy.run_module("verl.model_merger", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
