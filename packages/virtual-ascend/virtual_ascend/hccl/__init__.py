"""HCCL of the virtual Ascend: the c10d backend `hccl`, and `libhccl.so` for programs that load HCCL by themselves."""
