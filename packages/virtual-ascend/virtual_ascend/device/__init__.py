"""The compiled device: its C++ sources, how it is compiled and found, and the one that this process has loaded."""
