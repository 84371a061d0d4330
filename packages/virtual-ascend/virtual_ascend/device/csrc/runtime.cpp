#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

namespace virtual_ascend {
namespace {

struct State {
  std::mutex mutex;
  int installed = 0;
  std::atomic<bool> initialised{false};
  std::atomic<bool> bad_fork{false};
  std::vector<int> visible;  // valid once initialised
};

State& state() {
  static State* it = new State();  // never destroyed: tensors may outlive static destructors
  return *it;
}

thread_local int t_current = 0;
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};
std::atomic<c10::StreamId> next_stream{1};

void after_fork_in_child() {
  if (state().initialised) state().bad_fork = true;
}

// Reads the list as CANN does: ids up to the first that this machine does not have or that appears twice.
std::vector<int> parse_visible(const char* text, int installed) {
  std::vector<int> ids;
  if (text == nullptr) {
    for (int i = 0; i < installed; ++i) ids.push_back(i);
    return ids;
  }
  std::string rest(text);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const auto item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const auto first = item.find_first_not_of(' ');
    const auto last = item.find_last_not_of(' ');
    const auto word = first == std::string::npos ? std::string() : item.substr(first, last - first + 1);
    if (word.empty() || word.size() > 3 || word.find_first_not_of("0123456789") != std::string::npos) break;
    const int id = std::stoi(word);
    bool known = id < installed;
    for (int earlier : ids) known = known && earlier != id;
    if (!known) break;
    ids.push_back(id);
  }
  return ids;
}

std::string describe(int count) {
  const char* env = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  std::string text = std::to_string(count) + (count == 1 ? " NPU is visible" : " NPUs are visible");
  if (count > 0) text += count == 1 ? " (npu:0)" : " (npu:0 to npu:" + std::to_string(count - 1) + ")";
  if (env != nullptr) text += std::string(", ASCEND_RT_VISIBLE_DEVICES='") + env + "'";
  return text;
}

}  // namespace

void configure(int installed) {
  TORCH_CHECK(installed >= 1 && installed <= kMaxDevices, "expected 1 to ", kMaxDevices, " virtual NPUs; found ", installed);
  state().installed = installed;
  pthread_atfork(nullptr, nullptr, &after_fork_in_child);
}

std::vector<int> visible_devices() {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.initialised) return s.visible;
  return parse_visible(std::getenv("ASCEND_RT_VISIBLE_DEVICES"), s.installed);
}

int device_count() noexcept { return static_cast<int>(visible_devices().size()); }

void initialise() {
  auto& s = state();
  TORCH_CHECK(!s.bad_fork,
              "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start method");
  if (s.initialised) return;
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.initialised) return;
  auto visible = parse_visible(std::getenv("ASCEND_RT_VISIBLE_DEVICES"), s.installed);
  TORCH_CHECK(!visible.empty(), "No NPUs are available: ", describe(0), ", ", s.installed, " installed (VIRTUAL_ASCEND)");
  s.visible = std::move(visible);
  s.initialised = true;
}

bool initialised() noexcept { return state().initialised && !state().bad_fork; }
bool in_bad_fork() noexcept { return state().bad_fork; }

int current_device() noexcept { return t_current; }
void unchecked_set_device(int index) noexcept { t_current = index; }

void check_index(int index) {
  const int count = device_count();
  TORCH_CHECK(index >= 0 && index < count, "NPU error: invalid device ordinal ", index, ": ", describe(count));
}

void set_device(int index) {
  initialise();
  check_index(index);
  t_current = index;
}

int resolve(const c10::Device& device) {
  if (device.index() < 0) return t_current;
  check_index(device.index());
  return device.index();
}

c10::Stream default_stream(int device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)));
}

c10::Stream current_stream(int device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)), t_streams.at(device));
}

c10::Stream new_stream(int device) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)), next_stream++);
}

static std::atomic<bool> streams_of_torch_refused{false};
void refuse_streams_of_torch(bool refused) { streams_of_torch_refused = refused; }
bool streams_of_torch_are_refused() { return streams_of_torch_refused; }

c10::Stream exchange_stream(c10::Stream stream) {
  auto previous = current_stream(stream.device_index());
  t_streams.at(stream.device_index()) = stream.id();
  return previous;
}

}  // namespace virtual_ascend
