"""Small models of the patched families: patched on an NPU, against unpatched ones on the host."""
