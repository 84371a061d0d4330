"""The program that runs in the compiler's own process, beside triton-ascend and never in the user's process.

It reads kernels from source files without importing their packages (`loading`), derives arguments for kernels whose
launch was not seen (`guessing`), and compiles them (`compiling`). `__main__` reads a JSON question from stdin and
writes a JSON answer to stdout.
"""
