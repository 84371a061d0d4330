"""virtual-ascend's HCCL: the c10d backend `hccl`, and `libhccl.so` for programs that load HCCL directly."""
