// What torch_npu's ProcessGroupHCCL asks of libhccl.so beside what programs ask that load it by themselves.
#include "../../hccl/libhccl.cpp"

#include <cstdio>

extern "C" {

int HcclCommInitRootInfoConfig(uint32_t ranks, const void* root, uint32_t rank, const void*, void** communicator) {
  using Init = int (*)(uint32_t, const void*, uint32_t, void**);
  return reinterpret_cast<Init>(reinterpret_cast<void*>(&HcclCommInitRootInfo))(ranks, root, rank, communicator);
}
// Buffer size and determinism may be configured; both change nothing here.
uint32_t HcclGetCommConfigCapability() { return 3; }
int HcclGetCommAsyncError(void*, int* error) {
  *error = 0;
  return 0;
}
int HcclGetCommName(void*, char* name) {
  snprintf(name, 128, "virtual");
  return 0;
}
int HcclSetConfig(int, int) { return 0; }
// One process with several NPUs, and communicators that go on after an error: torch_npu is told that there are none.
int HcclCommInitAll(uint32_t, int32_t*, void**) { return 5; }
int HcclCommResume(void*) { return 5; }
}
