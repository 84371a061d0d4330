#include "graph_replay.h"

#include "alias.h"
#include "copies.h"
#include "formats.h"
#include "graph_memory.h"
#include "hccl_work.h"
#include "runtime.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace virtual_ascend::graph {

std::atomic<int> g_under_way{0};

namespace {

struct Saved {
  std::shared_ptr<Block> block;
  char* begin;
  std::vector<char> bytes;
};

// The state that a capture restores: overwritten memory and generators.
struct Kept {
  std::list<Saved> memory;
  std::map<NpuGenerator*, std::pair<at::Generator, uint64_t>> generators;

  void put_back() {
    for (auto it = memory.rbegin(); it != memory.rend(); ++it)
      if (!it->block->gone) std::memcpy(it->begin, it->bytes.data(), it->bytes.size());
    for (auto& [generator, kept] : generators) generator->go_to(kept.second);
    memory.clear();
    generators.clear();
  }
};

struct Capture {
  uint64_t id;
  std::shared_ptr<Graph> graph;
  std::shared_ptr<Pool> pool;
  int device;
  c10::StreamId origin;
  std::thread::id thread;
  std::map<c10::StreamId, uint64_t> work;  // for each of its streams, how much was captured
  std::map<c10::StreamId, Covered> covered;  // for each stream, how much of other streams it follows
  Kept kept;
  bool broken = false;
};

struct Update {
  TaskGroup group;
  int device;
  c10::StreamId stream;
  std::vector<Task> tasks;
  Kept kept;
};

struct State {
  std::recursive_mutex mutex;
  std::optional<Capture> capture;
  std::optional<Update> update;
  std::map<std::pair<int, c10::StreamId>, Graph*> waiting;  // replays
  uint64_t captures = 0;
  std::function<void(const std::string&)> report;
  bool strict = false;
};

State& state() {
  static auto* it = new State();  // never destroyed: graphs may outlive static destructors
  return *it;
}

thread_local int t_inside = 0;
thread_local int t_replaying = 0;

class Replaying {
 public:
  Replaying() { ++t_replaying; }
  ~Replaying() { --t_replaying; }
  Replaying(const Replaying&) = delete;
  Replaying& operator=(const Replaying&) = delete;
};

c10::StreamId stream_on(int device) { return current_stream(device).id(); }

bool of_capture(int device, c10::StreamId stream) {
  const auto& capture = state().capture;
  return capture.has_value() && capture->device == device && capture->work.count(stream) > 0;
}

bool of_update(int device, c10::StreamId stream) {
  const auto& update = state().update;
  return update.has_value() && update->device == device && update->stream == stream;
}

// Where changes are saved if they are restored later; otherwise null.
Kept* kept_on(int device) {
  if (t_replaying > 0) return nullptr;
  if (of_update(device, stream_on(device))) return &state().update->kept;
  return of_capture(device, stream_on(device)) ? &state().capture->kept : nullptr;
}

// Reports an error of CANN's runtime as torch_npu does.
[[noreturn]] void fail(int code, const std::string& call, const std::string& reason) {
  TORCH_CHECK(false, "NPU function error: ", call, ", error code is ", code, "\n[ERROR] ERR00100 PTA call acl api failed.\n", reason,
              " (virtual Ascend)");
}

constexpr int kUnjoined = 107025, kStreamCaptured = 107027, kNotCaptured = 107029, kGroupStatus = 107033;

std::string described(const at::Tensor& tensor) {
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return out.str();
}

// A task that gets NPU tensors asks for their values itself.
bool is_packed(const Operand& operand) { return operand.tensor.device().is_cpu() && formats::is_fractal(operand.tensor); }

// Replaces memory that is gone: NaN, or zeros for dtypes without NaN.
at::Tensor poisoned(const at::Tensor& like) {
  at::Tensor host = at::detail::empty_strided_cpu(like.sizes(), like.strides(), like.scalar_type());
  const bool has_nan = c10::isFloatingType(like.scalar_type()) || c10::isComplexType(like.scalar_type());
  std::memset(const_cast<void*>(host.storage().data()), has_nan ? 0xFF : 0, host.storage().nbytes());
  return like.device().is_cpu() ? host : npu_alias(host, like.device().index());
}

}  // namespace

bool recording(int device) {
  if (!under_way() || t_inside > 0 || t_replaying > 0) return false;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  const auto stream = stream_on(device);
  return of_update(device, stream) || of_capture(device, stream);
}

bool any_is_recording(const Tensors& tensors) {
  return under_way() && !tensors.empty() && tensors.front().device().type() == kNpu && recording(tensors.front().device().index());
}

bool captures(const c10::Stream& stream) {
  if (!under_way()) return false;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  return of_capture(stream.device_index(), stream.id());
}

bool captures(int device) { return captures(current_stream(device)); }

void check_order(int device) {
  if (!under_way() || t_replaying > 0) return;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (state().waiting.empty()) return;
  TORCH_CHECK(state().waiting.count({device, stream_on(device)}) == 0, "stream ", stream_on(device), " is used while a replay on this "
              "stream waits for an ExternalEvent that was not recorded. On a virtual NPU, work is done when its call returns, so "
              "nothing can wait: record the event first (virtual Ascend)");
}

void refuse(Refused code, const char* call, const std::string& what) {
  {
    std::lock_guard<std::recursive_mutex> lock(state().mutex);
    if (state().capture.has_value()) state().capture->broken = true;
  }
  const char* reason = code == Refused::kSynchronising ? "Not allow to synchronize captured-stream. reason=stream is captured"
                       : code == Refused::kEvent       ? "reason=event is captured"
                                                       : "reason=the current capture mode does not support this operation";
  fail(static_cast<int>(code), call, std::string("EE9999: Inner Error!\nEE9999: ") + reason + "; while a graph is captured: " + what);
}

void refuse_synchronising(int device, const char* call, const std::string& what) {
  if (under_way() && t_inside == 0 && t_replaying == 0 && captures(device)) refuse(Refused::kSynchronising, call, what);
}

void refuse_while_capturing(int device, const char* attempt) {
  if (!under_way() || t_replaying > 0 || t_inside > 0 || !captures(device)) return;
  TORCH_CHECK(false, attempt, " during NPU graph capture. If you need this call to be captured, please file an issue. ",
              "Current npuStreamCaptureStatus: npuStreamCaptureStatusActive");
}

void save(const at::Tensor& npu) {
  if (!under_way() || npu.numel() == 0) return;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto* kept = kept_on(npu.device().index());
  if (kept == nullptr) return;
  const auto* base = npu.storage().data();
  if (state().capture.has_value() && owns(*state().capture->pool, base)) return;
  auto block = watch(npu.storage());
  if (block == nullptr) return;
  auto* begin = const_cast<char*>(static_cast<const char*>(npu.const_data_ptr()));
  const auto nbytes = at::detail::computeStorageNbytes(npu.sizes(), npu.strides(), npu.dtype().itemsize());
  for (const auto& known : kept->memory)
    if (known.begin <= begin && begin + nbytes <= known.begin + known.bytes.size()) return;
  kept->memory.push_back({std::move(block), begin, std::vector<char>(begin, begin + nbytes)});
}

void drawing(NpuGenerator& generator, int device) {
  if (!under_way()) return;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto* kept = kept_on(device);
  if (kept == nullptr || kept->generators.count(&generator) > 0) return;
  const auto held = c10::intrusive_ptr<c10::GeneratorImpl>::unsafe_reclaim_from_nonowning(&generator);
  kept->generators[&generator] = {at::Generator(held), generator.offset()};
}

std::optional<c10::DataPtr> allocate(int device, size_t nbytes) {
  if (t_inside > 0 || t_replaying > 0) return std::nullopt;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (!of_capture(device, stream_on(device))) return std::nullopt;
  return allocate_in(state().capture->pool, nbytes);
}

Inside::Inside() { ++t_inside; }
Inside::~Inside() { --t_inside; }

void add(Task task) {
  if (C10_UNLIKELY(formats::any()))
    for (const auto& operand : task.operands) task.unpacks = task.unpacks || is_packed(operand);
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (state().update.has_value() && of_update(state().update->device, stream_on(state().update->device))) {
    state().update->tasks.push_back(std::move(task));
    return;
  }
  auto& capture = state().capture;
  TORCH_CHECK(capture.has_value(), "no capture is running that could record ", task.name);
  ++capture->work[stream_on(capture->device)];
  capture->graph->tasks_.push_back(std::move(task));
}

Mark mark(const c10::Stream& stream) {
  if (!captures(stream)) return {};
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto& capture = *state().capture;
  Mark out{capture.id, capture.covered[stream.id()]};
  out.covered[stream.id()] = capture.work[stream.id()];
  return out;
}

void join(const Mark& mark, const c10::Stream& stream) {
  if (mark.capture == 0 || !under_way()) return;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto& capture = state().capture;
  if (!capture.has_value() || capture->id != mark.capture) return;
  if (capture->work.count(stream.id()) == 0) capture->work[stream.id()] = 1;
  auto& covered = capture->covered[stream.id()];
  for (const auto& [other, much] : mark.covered) covered[other] = std::max(covered[other], much);
}

bool is_under_way(const Mark& mark) {
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  return state().capture.has_value() && state().capture->id == mark.capture;
}

void Graph::capture_begin(const PoolId& pool, const std::string& error_mode) {
  TORCH_CHECK(error_mode == "global" || error_mode == "thread_local" || error_mode == "relaxed",
              "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", error_mode);
  initialise();
  const char* level = std::getenv("TASK_QUEUE_ENABLE");
  TORCH_CHECK(level == nullptr || std::string_view(level) != "2",
              "Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture, please export TASK_QUEUE_ENABLE=1/0.");
  TORCH_CHECK(!ready_, "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
  const int device = current_device();
  const auto stream = current_stream(device);
  TORCH_CHECK(stream != default_stream(device), "NPU graphs must be captured on a non-default stream. "
              "(However, after capture, it's ok to replay them on the default stream.)");
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (state().capture.has_value())
    fail(kStreamCaptured, "c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, capture_mode)", "another capture is running in this process");
  device_ = device;
  pool_id_ = pool.first == 0 && pool.second == 0 ? new_pool_id(false) : pool;
  pool_ = pool_of(pool_id_, device);
  retain(pool_);
  tasks_.clear();
  Capture capture;
  capture.id = ++state().captures;
  capture.graph = shared_from_this();
  capture.pool = pool_;
  capture.device = device;
  capture.origin = stream.id();
  capture.thread = std::this_thread::get_id();
  capture.work[stream.id()] = 1;
  state().capture = std::move(capture);
  ++g_under_way;
}

void Graph::capture_end() {
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto& current = state().capture;
  TORCH_CHECK(current.has_value() && current->graph.get() == this, "capture_end() called before capture_begin().");
  TORCH_CHECK(stream_on(device_) == current->origin, "Capture must end on the same stream it began on.");
  auto capture = std::move(*current);
  state().capture.reset();
  --g_under_way;
  capture.kept.put_back();
  in_group_ = false;
  const auto& covered = capture.covered[capture.origin];
  for (const auto& [stream, much] : capture.work) {
    if (stream == capture.origin) continue;
    const auto known = covered.find(stream);
    if (known != covered.end() && known->second >= much) continue;
    reset();
    fail(kUnjoined, "c10_npu::acl::AclmdlRICaptureEnd(capture_stream_, &model_ri)",
         c10::str("EE9999: stream ", stream, " is part of the capture but was not joined to the stream on which it began"));
  }
  ready_ = !capture.broken;
  if (!ready_) reset();
  looked_at_ = 0;
  tidy();
}

PoolId Graph::pool() const {
  TORCH_CHECK(ready_, "Called NPUGraph::pool() without a preceding successful capture.");
  return pool_id_;
}

void Graph::reset() {
  std::vector<Task> old;  // freed after unlocking, because Python functions take the GIL
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (waits_) {
    state().waiting.erase({device_, stream_});
    --g_under_way;
    waits_ = false;
  }
  old.swap(tasks_);
  dead_.clear();
  said_.clear();
  next_ = 0;
  ready_ = false;
  if (pool_ != nullptr) release(pool_);
  pool_.reset();
  tidy();
}

void Graph::replay() {
  TORCH_CHECK(ready_, "Called NPUGraph::replay without a preceding successful capture.");
  refuse_while_capturing(device_, "Cannot prepare for replay during capturing stage.");
  TORCH_CHECK(!waits_, "a graph is replayed while its last replay still waits for an ExternalEvent that was not recorded: on a real "
              "NPU, both replays would wait (virtual Ascend)");
  check_order(device_);
  copies::before_operation(device_);
  stream_ = stream_on(device_);
  next_ = 0;
  go_on();
}

void Graph::go_on() {
  Replaying replaying;
  c10::InferenceMode inference;
  DeviceScope scope(device_);
  if (looked_at_ != changes()) look_at_memory();
  for (; next_ < tasks_.size(); ++next_) {
    auto& event = tasks_[next_].waits_for;
    if (event == nullptr || event->set) {
      run(next_);
      continue;
    }
    event->waiting = weak_from_this();
    std::lock_guard<std::recursive_mutex> lock(state().mutex);
    if (!waits_) ++g_under_way;
    waits_ = true;
    state().waiting[{device_, stream_}] = this;
    return;
  }
  if (!waits_) return;
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  waits_ = false;
  --g_under_way;
  state().waiting.erase({device_, stream_});
}

void Graph::run(size_t number) {
  const auto& task = tasks_[number];
  if (!task.run) return;
  const bool has_dead = number < dead_.size() && !dead_[number].empty();
  if (C10_LIKELY(!has_dead && !task.unpacks)) return task.run(nullptr);
  Tensors instead;
  instead.reserve(task.operands.size());
  for (const auto& operand : task.operands) instead.push_back(is_packed(operand) ? formats::values(operand.tensor) : operand.tensor);
  if (has_dead)
    for (const auto which : dead_[number]) instead[which] = poisoned(task.operands[which].tensor);
  task.run(&instead);
}

void Graph::look_at_memory() {
  looked_at_ = changes();
  dead_.assign(tasks_.size(), {});
  for (size_t i = 0; i < tasks_.size(); ++i)
    for (size_t k = 0; k < tasks_[i].operands.size(); ++k) {
      const auto& operand = tasks_[i].operands[k];
      if (operand.block == nullptr || !operand.block->gone) continue;
      dead_[i].push_back(k);
      if (said_.insert({i, k}).second) say(tasks_[i], operand);
    }
}

void Graph::say(const Task& task, const Operand& operand) {
  const auto text = c10::str("a graph is replayed with memory that is gone: ", operand.name, " of ", task.name, " (",
                             described(operand.tensor), "), ", operand.block->by);
  if (state().strict) {
    looked_at_ = 0;
    said_.clear();
    TORCH_CHECK(false, text, " (VIRTUAL_ASCEND_GRAPHS=strict)");
  }
  if (state().report) state().report(text + ". Here it computes with NaN; a real NPU would use whatever is there now");
}

void ExternalEvent::record(const c10::Stream& stream) {
  const auto self = shared_from_this();
  if (captures(stream)) return add({"ExternalEvent.record", {}, [self](const Tensors*) { self->set = true; }, nullptr});
  set = true;
  if (const auto graph = waiting.lock()) {
    waiting.reset();
    graph->go_on();
  }
}

void ExternalEvent::wait(const c10::Stream& stream) {
  if (captures(stream)) return add({"ExternalEvent.wait", {}, nullptr, shared_from_this()});
  TORCH_CHECK(set, "stream ", stream.id(), " waits for an ExternalEvent that was not recorded. On a virtual NPU, work is done when its "
              "call returns, so nothing can wait: record the event first (virtual Ascend)");
}

void ExternalEvent::reset(const c10::Stream& stream) {
  const auto self = shared_from_this();
  if (captures(stream)) return add({"ExternalEvent.reset", {}, [self](const Tensors*) { self->set = false; }, nullptr});
  set = false;
}

void begin_group(const c10::Stream& stream) {
  if (!captures(stream)) fail(kNotCaptured, "c10_npu::acl::AclmdlRICaptureTaskGrpBegin(stream)", "reason=stream is not in capture status");
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto& graph = *state().capture->graph;
  if (graph.in_group_) fail(kGroupStatus, "c10_npu::acl::AclmdlRICaptureTaskGrpBegin(stream)", "reason=task group status error: one is open");
  graph.in_group_ = true;
  graph.group_ = graph.tasks_.size();
}

TaskGroup end_group(const c10::Stream& stream) {
  if (!captures(stream)) fail(kNotCaptured, "c10_npu::acl::AclmdlRICaptureTaskGrpEnd(stream, &group)", "reason=stream is not in capture status");
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  auto& graph = *state().capture->graph;
  if (!graph.in_group_) fail(kGroupStatus, "c10_npu::acl::AclmdlRICaptureTaskGrpEnd(stream, &group)", "reason=task group status error: none is open");
  graph.in_group_ = false;
  return {state().capture->graph, graph.group_, graph.tasks_.size()};
}

void begin_update(const c10::Stream& stream, const TaskGroup& group) {
  const char* call = "c10_npu::acl::AclmdlRICaptureTaskUpdateBegin(stream, handle.task_group)";
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (state().update.has_value()) fail(kGroupStatus, call, "reason=task group status error: another one is being updated");
  if (group.graph.expired()) fail(kGroupStatus, call, "reason=task group status error: its graph is gone");
  Update update;
  update.group = group;
  update.device = stream.device_index();
  update.stream = stream.id();
  state().update = std::move(update);
  ++g_under_way;
}

void end_update(const c10::Stream& stream) {
  const char* call = "c10_npu::acl::AclmdlRICaptureTaskUpdateEnd(stream)";
  std::lock_guard<std::recursive_mutex> lock(state().mutex);
  if (!of_update(stream.device_index(), stream.id())) fail(kGroupStatus, call, "reason=task group status error: none is being updated on this stream");
  auto update = std::move(*state().update);
  state().update.reset();
  --g_under_way;
  update.kept.put_back();
  const auto graph = update.group.graph.lock();
  if (graph == nullptr || !graph->ready_) fail(kGroupStatus, call, "reason=task group status error: its graph is gone");
  const auto count = update.group.last - update.group.first;
  if (update.tasks.size() != count)
    fail(kGroupStatus, call, c10::str("reason=task group status error: ", update.tasks.size(), " tasks for a group of ", count));
  for (size_t i = 0; i < count; ++i) {
    auto& task = graph->tasks_[update.group.first + i];
    if (task.name != update.tasks[i].name)
      fail(kGroupStatus, call, c10::str("reason=task group status error: ", update.tasks[i].name, " in place of ", task.name));
    task = std::move(update.tasks[i]);
  }
  graph->looked_at_ = 0;
}

void refuse_to_synchronise(int device) {
  std::unique_lock<std::recursive_mutex> lock(state().mutex);
  const auto& capture = state().capture;
  if (capture.has_value() && capture->device == device && capture->thread == std::this_thread::get_id()) {
    lock.unlock();
    refuse(Refused::kMode, "c10_npu::acl::AclrtSynchronizeDeviceWithTimeout()", "the host waits for the NPU");
  }
  for (const auto& [place, graph] : state().waiting)
    TORCH_CHECK(place.first != device, "the host waits for NPU ", device, ", where a replay waits for an ExternalEvent that was not "
                "recorded: on a real NPU, this call would never return (virtual Ascend)");
}

void set_reporter(std::function<void(const std::string&)> report, bool strict) {
  state().report = std::move(report);
  state().strict = strict;
}

}  // namespace virtual_ascend::graph

namespace virtual_ascend {

void synchronize_npu(int device) {
  if (C10_UNLIKELY(graph::under_way())) graph::refuse_to_synchronise(device);
  synchronize_collectives(device);
  copies::synchronize_device(device);
}

}  // namespace virtual_ascend
