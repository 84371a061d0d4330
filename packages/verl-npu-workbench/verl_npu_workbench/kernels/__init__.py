"""Triton kernels judged without an NPU: `toolchain` has Ascend's Triton compiler, `targets` finds source files,
`judging` has each kernel of them compiled in a process of its own (`inside`), and `verdict` says what came of it."""
