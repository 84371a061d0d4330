"""The version of verl-npu."""

__version__ = "0.1.0"
