"""Failures that the user asks for with `VERL_NPU_VIRTUAL_FAULTS`: what may be asked, and how it is made to happen."""
