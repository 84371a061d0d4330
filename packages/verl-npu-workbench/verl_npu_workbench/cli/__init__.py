"""The commands that this distribution adds to `verl-npu`, one module each."""
