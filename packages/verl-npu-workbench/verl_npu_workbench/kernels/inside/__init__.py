"""The program that runs beside triton-ascend in the compiler's own process, never in the user's process.

It reads kernels from source files without importing their packages (`loading`), derives arguments for kernels whose
launch was not recorded (`guessing`), and compiles the kernels (`compiling`). `__main__` reads a request as JSON from
stdin and writes the response as JSON to stdout.
"""
