"""Runs the real torch_npu on a stub CANN. The CPU computes torch_npu's operators.

The wheel's own C++ and Python run: dispatch, argument checks, shapes, autograd formulas, allocator, streams, and
ProcessGroupHCCL. The CANN functions that they call are stubs, generated from the undefined symbols of the wheel.
"""
