"""Compares small models of the patched families: patched on an NPU, and unpatched on the host."""
