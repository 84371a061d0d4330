"""What runs in the compiler's own process, beside triton-ascend and never in the user's: it reads kernels out of
source files without importing what they belong to (`loading`), derives arguments where no launch was seen
(`guessing`), and compiles (`compiling`). It is asked in JSON on stdin and answers in JSON on stdout (`__main__`)."""
