"""Run a module as a program, and print this process's peak NPU memory: `peak.py MODULE [ARGUMENT…]`."""

from __future__ import annotations

import runpy
import sys

import torch

sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
print("peak of NPU memory in bytes:", torch.npu.max_memory_allocated(), flush=True)
