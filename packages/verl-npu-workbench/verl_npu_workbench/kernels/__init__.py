"""Judges Triton kernels without an NPU.

`toolchain` installs Ascend's Triton compiler, `targets` finds source files, `judging` compiles each kernel in a
separate process (`inside`), and `verdict` defines the results.
"""
