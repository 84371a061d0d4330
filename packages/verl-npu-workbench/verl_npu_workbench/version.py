"""The version of verl-npu-workbench."""

__version__ = "0.1.0"
