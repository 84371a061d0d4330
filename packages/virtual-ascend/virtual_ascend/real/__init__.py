"""The real torch_npu over a CANN that computes nothing, with the CPU behind each of its operators.

The wheel's own C++ and Python run: dispatch, argument checks, shapes, autograd formulas, allocator, streams, and
ProcessGroupHCCL. What they call in CANN is a stub that is generated from what the wheel's libraries leave undefined.
"""
