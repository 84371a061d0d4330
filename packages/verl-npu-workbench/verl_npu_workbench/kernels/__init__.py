"""Judges Triton kernels without an NPU.

`toolchain` installs Ascend's Triton compiler, `targets` finds source files, `judging` compiles each of their kernels
in a process of its own (`inside`), and `verdict` defines the results.
"""
