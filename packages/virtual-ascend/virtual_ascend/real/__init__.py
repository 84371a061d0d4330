"""The real torch_npu over a stub CANN, with the CPU computing its operators.

The wheel's own C++ and Python run: dispatch, argument checks, shapes, autograd formulas, allocator, streams, and
ProcessGroupHCCL. The CANN functions that they call are stubs, generated from the undefined symbols of the wheel.
"""
