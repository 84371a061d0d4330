"""Our own torch_npu against a wheel's: the same names, schemas and calls in two processes, and the differences."""
