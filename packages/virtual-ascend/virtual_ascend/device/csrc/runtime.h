// The runtime of the virtual Ascend: the NPUs that exist, and the current NPU and stream.
#pragma once

#include "tensors.h"

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>

#include <vector>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif
#define VIRTUAL_ASCEND_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace virtual_ascend {

constexpr int kMaxDevices = 64;

// Sets how many NPUs this machine has (VIRTUAL_ASCEND). Called once, before anything else.
void configure(int installed);

// The physical ids of the NPUs that this process sees. ASCEND_RT_VISIBLE_DEVICES is read at every call until the
// runtime is initialised, because Ray sets the variable in a running process.
std::vector<int> visible_devices();
int device_count() noexcept;

// Called at the first use of a device. Freezes the visible devices; raises in a process that was forked after its
// parent called it.
void initialise();
bool initialised() noexcept;
bool in_bad_fork() noexcept;

int current_device() noexcept;
void set_device(int index);            // raises if there is no such NPU
void unchecked_set_device(int index) noexcept;
int resolve(const c10::Device& device); // an explicit index, or the current one
void check_index(int index);

// Streams have an identity but no order of their own: every operation has finished when its call returns, except
// delayed copies (copies.h).
c10::Stream current_stream(int device);
c10::Stream default_stream(int device);
c10::Stream new_stream(int device);
void refuse_streams_of_torch(bool refused);  // torch_npu before 2.7.1 refuses them
bool streams_of_torch_are_refused();
c10::Stream exchange_stream(c10::Stream stream);

// Makes `device` current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : previous_(current_device()) { unchecked_set_device(device); }
  ~DeviceScope() { unchecked_set_device(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_;
};

}  // namespace virtual_ascend
