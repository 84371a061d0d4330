// CANN's runtime for virtual NPUs: devices, memory, copies, streams and events. Device memory is host memory, and every
// operation has finished when its call returns.
#include "cann.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

namespace verl_npu_cann {
namespace {

constexpr int kMaxDevices = 64;
constexpr size_t kAlignment = 512;
// Memory that nobody has written reads as no sensible number; more than this would cost more time than it shows.
constexpr size_t kPoisoned = size_t{64} << 20;

struct Machine {
  int devices = 0;
  uint64_t memory = 0;
  std::string soc, version;
  std::mutex mutex;
  std::array<uint64_t, kMaxDevices> used{};
  std::unordered_map<void*, std::pair<int, size_t>> blocks;
};

Machine& machine() {
  static auto* it = new Machine();  // tensors may outlive static destructors
  return *it;
}

struct Stream {
  int id = 0;
};

struct Event {
  bool recorded = false;
  std::chrono::steady_clock::time_point time;
};

thread_local int t_device = -1;
thread_local int t_covered = 0;
std::array<char, kMaxDevices> g_contexts;
std::atomic<int> g_streams{0};

// As CANN reads it: the numbers up to the first one that is not there, or is there twice.
int visible() {
  const char* text = getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (text == nullptr) return machine().devices;
  std::set<long> seen;
  while (*text != '\0') {
    char* end;
    const long number = strtol(text, &end, 10);
    if (end == text || number < 0 || number >= machine().devices || !seen.insert(number).second) break;
    text = *end == ',' ? end + 1 : end;
    if (*end != ',') break;
  }
  return static_cast<int>(seen.size());
}

int frozen_visible() {
  static const int count = visible();
  return count;
}

int allocate(void** pointer, size_t size) {
  *pointer = nullptr;
  auto& m = machine();
  const int device = std::max(t_device, 0);
  size = std::max(size, kAlignment);
  std::lock_guard<std::mutex> lock(m.mutex);
  if (m.used[device] + size > m.memory) return kOutOfMemory;
  if (posix_memalign(pointer, kAlignment, size) != 0) return kOutOfMemory;
  if (size <= kPoisoned) memset(*pointer, 0xA5, size);
  m.used[device] += size;
  m.blocks[*pointer] = {device, size};
  return kSuccess;
}

int release(void* pointer) {
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  const auto found = m.blocks.find(pointer);
  if (found == m.blocks.end()) return kInvalidParameter;
  m.used[found->second.first] -= found->second.second;
  m.blocks.erase(found);
  free(pointer);
  return kSuccess;
}

}  // namespace
}  // namespace verl_npu_cann

using namespace verl_npu_cann;

extern "C" {

void verl_npu_cann_configure(int devices, uint64_t memory, const char* soc, const char* cann_version) {
  auto& m = machine();
  m.devices = std::min(devices, kMaxDevices);
  m.memory = memory;
  m.soc = soc;
  m.version = cann_version;
}

void verl_npu_cann_cover() { ++t_covered; }
void verl_npu_cann_uncover() { --t_covered; }

int verl_npu_cann_unanswered(const char* name) {
  static const bool trace = getenv("VERL_NPU_VIRTUAL_TRACE") != nullptr;
  if (trace) fprintf(stderr, "virtual CANN: %s\n", name);
  // No rank must take for sent what was not.
  if (strncmp(name, "Hccl", 4) == 0) {
    fprintf(stderr, "verl-npu: virtual Ascend: %s is not implemented\n", name);
    return 5;  // HCCL_E_NOT_SUPPORT
  }
  if (t_covered > 0 || strncmp(name, "aclnn", 5) != 0 || strstr(name, "GetWorkspaceSize") != nullptr) return 0;
  static std::mutex mutex;
  static auto* said = new std::set<std::string>();
  std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(name).second)
    fprintf(stderr, "verl-npu: virtual Ascend: %s was called and nothing computes it: what it should have written is undefined\n", name);
  return 0;
}

int aclInit(const char*) { return kSuccess; }
int aclFinalize() { return kSuccess; }
const char* aclGetRecentErrMsg() { return "no message: this CANN is simulated"; }

int aclrtGetDeviceCount(uint32_t* count) {
  // Ray sets the visible devices in a process that is already running, so nothing is frozen before a device is used.
  *count = static_cast<uint32_t>(visible());
  return *count > 0 ? kSuccess : kInvalidDevice;
}

int aclrtSetDevice(int device) {
  if (device < 0 || device >= frozen_visible()) return kInvalidDevice;
  t_device = device;
  return kSuccess;
}

int aclrtGetDevice(int* device) {
  if (t_device < 0) return kNoContext;
  *device = t_device;
  return kSuccess;
}

int aclrtResetDevice(int) {
  t_device = -1;
  return kSuccess;
}

int aclrtSetCurrentContext(void* context) {
  t_device = context == nullptr ? -1 : static_cast<int>(static_cast<char*>(context) - g_contexts.data());
  return kSuccess;
}

int aclrtGetCurrentContext(void** context) {
  if (t_device < 0) return kNoContext;
  *context = &g_contexts[t_device];
  return kSuccess;
}

int aclrtDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kSuccess;
}

const char* aclrtGetSocName() { return machine().soc.c_str(); }

int aclrtGetMemInfo(int, size_t* available, size_t* total) {
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  *total = m.memory;
  *available = m.memory - m.used[std::max(t_device, 0)];
  return kSuccess;
}

int aclrtMalloc(void** pointer, size_t size, int) { return allocate(pointer, size); }
int aclrtMallocAlign32(void** pointer, size_t size, int) { return allocate(pointer, size); }
int aclrtMallocCached(void** pointer, size_t size, int) { return allocate(pointer, size); }
int aclrtMallocWithCfg(void** pointer, size_t size, int, void*) { return allocate(pointer, size); }
int aclrtFree(void* pointer) { return release(pointer); }

int aclrtMallocHost(void** pointer, size_t size) {
  *pointer = nullptr;
  return posix_memalign(pointer, kAlignment, std::max(size, kAlignment)) == 0 ? kSuccess : kOutOfMemory;
}
int aclrtMallocHostWithCfg(void** pointer, uint64_t size, void*) { return aclrtMallocHost(pointer, size); }

int aclrtFreeHost(void* pointer) {
  free(pointer);
  return kSuccess;
}

int aclrtMemcpy(void* to, size_t room, const void* from, size_t size, int) {
  if (size > room) return kInvalidParameter;
  memmove(to, from, size);
  return kSuccess;
}
int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, int kind, void*) {
  return aclrtMemcpy(to, room, from, size, kind);
}
int aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t size, int kind, void*) {
  return aclrtMemcpy(to, room, from, size, kind);
}
int aclrtMemset(void* to, size_t room, int value, size_t size) {
  if (size > room) return kInvalidParameter;
  memset(to, value, size);
  return kSuccess;
}
int aclrtMemsetAsync(void* to, size_t room, int value, size_t size, void*) { return aclrtMemset(to, room, value, size); }

int aclrtCreateStream(void** stream) {
  auto* made = new Stream();
  made->id = ++g_streams;
  *stream = made;
  return kSuccess;
}
int aclrtCreateStreamWithConfig(void** stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }
int aclrtDestroyStream(void* stream) {
  delete static_cast<Stream*>(stream);
  return kSuccess;
}
int aclrtDestroyStreamForce(void* stream) { return aclrtDestroyStream(stream); }
int aclrtStreamGetId(void* stream, int* id) {
  *id = stream == nullptr ? 0 : static_cast<Stream*>(stream)->id;
  return kSuccess;
}
int aclrtStreamQuery(void*, int* done) {
  *done = 0;  // ACL_STREAM_STATUS_COMPLETE
  return kSuccess;
}
int aclrtSynchronizeStream(void*) { return kSuccess; }
int aclrtSynchronizeStreamWithTimeout(void*, int) { return kSuccess; }
int aclrtSynchronizeDevice() { return kSuccess; }
int aclrtSynchronizeDeviceWithTimeout(int) { return kSuccess; }
int aclrtStreamWaitEvent(void*, void*) { return kSuccess; }

int aclrtCreateEvent(void** event) {
  *event = new Event();
  return kSuccess;
}
int aclrtCreateEventWithFlag(void** event, uint32_t) { return aclrtCreateEvent(event); }
int aclrtCreateEventExWithFlag(void** event, uint32_t) { return aclrtCreateEvent(event); }
int aclrtDestroyEvent(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
int aclrtRecordEvent(void* event, void*) {
  auto* e = static_cast<Event*>(event);
  e->recorded = true;
  e->time = std::chrono::steady_clock::now();
  return kSuccess;
}
int aclrtResetEvent(void*, void*) { return kSuccess; }
int aclrtSynchronizeEvent(void*) { return kSuccess; }
int aclrtSynchronizeEventWithTimeout(void*, int) { return kSuccess; }
int aclrtQueryEventStatus(void*, int* done) {
  *done = 1;  // ACL_EVENT_RECORDED_STATUS_COMPLETE
  return kSuccess;
}
int aclrtQueryEventWaitStatus(void*, int* done) {
  *done = 0;  // ACL_EVENT_WAIT_STATUS_COMPLETE
  return kSuccess;
}
int aclrtQueryEvent(void*, int* done) {
  *done = 0;  // ACL_EVENT_STATUS_COMPLETE
  return kSuccess;
}
int aclrtEventElapsedTime(float* milliseconds, void* start, void* end) {
  const auto* a = static_cast<Event*>(start);
  const auto* b = static_cast<Event*>(end);
  if (!a->recorded || !b->recorded) return kInvalidParameter;
  *milliseconds = std::chrono::duration<float, std::milli>(b->time - a->time).count();
  return kSuccess;
}

int aclrtPeekAtLastError(int) { return kSuccess; }
int aclrtGetLastError(int) { return kSuccess; }
int aclrtGetSysParamOpt(int, int64_t* value) {
  if (value != nullptr) *value = 0;
  return kSuccess;
}
int aclGetDeviceCapability(uint32_t, int, int64_t* value) {
  *value = 1;
  return kSuccess;
}
int aclGetCannAttribute(int, int* value) {
  *value = 0;
  return kSuccess;
}
int aclGetCannAttributeList(const int** list, size_t* count) {
  *list = nullptr;
  *count = 0;
  return kSuccess;
}
int aclGetCompileoptSize(int) { return 8; }
int aclGetCompileopt(int, char* value, size_t room) {
  snprintf(value, room, "disable");
  return kSuccess;
}
int aclrtDeviceGetBareTgid(int* process) {
  *process = getpid();
  return kSuccess;
}

// A version in the layout of aclCANNPackageVersion: version[128], major[64], minor[64], release[64], patch[64], …
int aclsysGetCANNVersion(int, char* out) {
  const std::string& version = machine().version;
  memset(out, 0, 128 + 4 * 64 + 128);
  snprintf(out, 128, "%s", version.c_str());
  size_t start = 0;
  for (int part = 0; part < 4 && start <= version.size(); ++part) {
    const size_t end = std::min(version.find('.', start), version.size());
    snprintf(out + 128 + 64 * part, 64, "%s", version.substr(start, end - start).c_str());
    start = end + 1;
  }
  return kSuccess;
}
int aclsysGetVersionStr(char*, char* out) {
  snprintf(out, 128, "%s", machine().version.c_str());
  return kSuccess;
}

// libc's bounds-checked functions, which CANN's libsecurec brings.
int strcpy_s(char* to, size_t room, const char* from) {
  if (room == 0 || strlen(from) >= room) return 34;  // ERANGE
  memcpy(to, from, strlen(from) + 1);
  return 0;
}
int vsnprintf_s(char* to, size_t room, size_t, const char* format, va_list arguments) {
  return vsnprintf(to, room, format, arguments);
}
int snprintf_s(char* to, size_t room, size_t, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(to, room, format, arguments);
  va_end(arguments);
  return written;
}
}
