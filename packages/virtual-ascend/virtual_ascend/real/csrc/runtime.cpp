// CANN's runtime for virtual NPUs: devices and memory. Device memory is host memory.
#include "cann.h"

#include "../../device/csrc/faults.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

namespace virtual_ascend_cann {
namespace {

constexpr int kMaxDevices = 64;
constexpr size_t kAlignment = 512;
// Uninitialised memory is filled with implausible numbers; above this size that would take more time than it is worth.
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

thread_local int t_device = -1;
thread_local int t_covered = 0;
// torch_npu retries after freeing its cache, and then asks for the amount of memory, for its error message.
thread_local bool t_out_of_memory = false;
// CANN's message for an operator that should fail.
thread_local std::string t_failure;
constexpr int kOperatorFailed = 561103;  // ACLNN_ERR_INNER_NULLPTR, an error that operators return
std::array<char, kMaxDevices> g_contexts;

// Reads the list as CANN does: ids up to the first that does not exist or appears twice.
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
  if (!t_out_of_memory && virtual_ascend::faults::allocation_fails(static_cast<int64_t>(size))) {
    fprintf(stderr, "virtual-ascend: fault: an allocation of %zu bytes fails because of VIRTUAL_ASCEND_FAULTS\n", size);
    t_out_of_memory = true;
  }
  if (t_out_of_memory) return kOutOfMemory;
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
}  // namespace virtual_ascend_cann

using namespace virtual_ascend_cann;

extern "C" {

void virtual_ascend_cann_configure(int devices, uint64_t memory, const char* soc, const char* cann_version) {
  auto& m = machine();
  m.devices = std::min(devices, kMaxDevices);
  m.memory = memory;
  m.soc = soc;
  m.version = cann_version;
}

void virtual_ascend_cann_cover() { ++t_covered; }
void virtual_ascend_cann_uncover() { --t_covered; }
void virtual_ascend_cann_fail(const char* message) { t_failure = message; }

void virtual_ascend_cann_die_at_collective(int64_t collective, int rank) { virtual_ascend::faults::die_at_collective(collective, rank); }
void virtual_ascend_cann_slow_collectives(double seconds, int rank) { virtual_ascend::faults::slow_collectives(seconds, rank); }
void virtual_ascend_cann_limit_bandwidth(double gigabytes_per_second, int rank) {
  virtual_ascend::faults::limit_bandwidth(gigabytes_per_second, rank);
}
void virtual_ascend_cann_fail_allocation(int64_t allocation, int rank) { virtual_ascend::faults::fail_allocation(allocation, rank); }
void virtual_ascend_cann_fail_allocations_above(int64_t bytes, int rank) { virtual_ascend::faults::fail_allocations_above(bytes, rank); }
void virtual_ascend_cann_set_rank(int rank) {
  // $RANK has priority: the first communicator may only contain a few of the ranks.
  if (virtual_ascend::faults::rank() == virtual_ascend::faults::kAnyRank) virtual_ascend::faults::set_rank(rank);
}
int virtual_ascend_cann_rank() { return virtual_ascend::faults::rank(); }
double virtual_ascend_cann_at_collective(const char* name, int64_t bytes) { return virtual_ascend::faults::at_collective(name, bytes); }

int virtual_ascend_cann_unanswered(const char* name) {
  static const bool trace = getenv("VIRTUAL_ASCEND_TRACE") != nullptr;
  if (trace) fprintf(stderr, "virtual CANN: %s\n", name);
  // A rank must not believe that it has sent something.
  if (strncmp(name, "Hccl", 4) == 0) {
    fprintf(stderr, "virtual-ascend: virtual Ascend: %s is not implemented\n", name);
    return 5;  // HCCL_E_NOT_SUPPORT
  }
  if (!t_failure.empty() && strncmp(name, "aclnn", 5) == 0) return kOperatorFailed;
  if (t_covered > 0 || strncmp(name, "aclnn", 5) != 0 || strstr(name, "GetWorkspaceSize") != nullptr) return 0;
  static std::mutex mutex;
  static auto* said = new std::set<std::string>();
  std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(name).second)
    fprintf(stderr, "virtual-ascend: virtual Ascend: %s was called but nothing computes it: its output is undefined\n", name);
  return 0;
}

int aclInit(const char*) { return kSuccess; }
int aclFinalize() { return kSuccess; }
const char* aclGetRecentErrMsg() { return t_failure.empty() ? "no message (CANN is simulated)" : t_failure.c_str(); }

int aclrtGetDeviceCount(uint32_t* count) {
  // Ray sets the visible devices in a running process, so nothing is frozen before a device is used.
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
  t_out_of_memory = false;
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
// What an Ascend 910B supports. Without the first attribute, torch_npu's GradScaler would ask for overflow flags, which
// only older NPUs have.
int aclGetCannAttribute(int attribute, int* value) {
  constexpr int kInfNan = 0, kBf16 = 1;
  *value = attribute == kInfNan || attribute == kBf16;
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

// Bounds-checked C functions, which CANN's libsecurec supplies.
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
