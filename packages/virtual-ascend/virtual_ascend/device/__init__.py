"""The compiled device: its C++ sources, the code that compiles and finds it, and the device that this process
loaded."""
