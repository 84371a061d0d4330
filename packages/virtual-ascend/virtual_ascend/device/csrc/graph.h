// NPU graphs: capture records each operator with the addresses of its operands, and replay executes the record on
// whatever those addresses hold by then.
//
// How to use it: code that computes on NPU tensors calls `under_way()`, which costs one load, and only then
// `recording(device)`. While recording, it saves what it is about to overwrite (`save`), puts its results into the pool
// (`placed`), and adds a Task. As on a real NPU, a record holds no tensors: operands are addresses with a shape, and
// watched blocks of memory tell a replay when they are gone.
//
// A capture here computes in order to know shapes, whereas a real one only records. When it ends, memory outside its
// pool and the state of generators are restored.
#pragma once

#include "formats.h"
#include "generator.h"
#include "tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace virtual_ascend::graph {

using Tensors = std::vector<at::Tensor>;
// As in torch_npu: the first number is set if a capture made the pool, the second if `graph_pool_handle` did.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// The number of captures, updates of task groups, and replays that wait for an event.
extern std::atomic<int> g_under_way;
inline bool under_way() { return g_under_way.load(std::memory_order_relaxed) > 0; }

// Whether this thread's work on the NPU's current stream is recorded.
bool recording(int device);
bool any_is_recording(const Tensors& tensors);
// Whether the NPU's current stream belongs to a capture.
bool captures(int device);
bool captures(const c10::Stream& stream);

// Raises if a replay on the NPU's current stream waits for an event: later work would have to wait, too.
void check_order(int device);

// What a capture refuses, with the error codes of CANN's runtime; the capture fails.
enum class Refused : int { kSynchronising = 107027, kEvent = 107028, kMode = 107030 };
[[noreturn]] void refuse(Refused code, const char* call, const std::string& what);
// Refuses if this thread captures on the NPU, or on the stream.
void refuse_synchronising(int device, const char* call, const std::string& what);
// Refuses in torch_npu's words what torch_npu itself forbids.
void refuse_while_capturing(int device, const char* attempt);

// Keeps the tensor's content, which is restored when the capture ends.
void save(const at::Tensor& npu);
// Returns an NPU tensor in the graph's pool with the values of the host tensor.
at::Tensor placed(const at::Tensor& host, int device);
c10::DataPtr placed(const c10::Storage& host, int device);
std::optional<c10::DataPtr> allocate(int device, size_t nbytes);

// A scope whose work is not recorded, because it is inside one operator or a replay.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// A block of memory whose address a graph has recorded.
struct Block {
  const void* base;
  size_t nbytes;
  c10::Storage host, npu;  // not owning; every operand in this block uses one of them
  bool gone = false;
  std::string by;  // what freed it
};

extern std::atomic<int> g_watched;
void forget_block(const void* base);
// Every way to free memory calls this.
inline void freed(const void* base) {
  formats::freed(base);
  if (g_watched.load(std::memory_order_relaxed) > 0) forget_block(base);
}
void moved(const void* from, const void* to);
// Memory behind an address was mapped or unmapped.
void mapping_changed(const void* base, bool mapped);

// An input or output of an operator, by address and without holding its memory.
struct Operand {
  at::Tensor tensor;
  std::shared_ptr<Block> block;
  std::string name;
};

struct ExternalEvent;

struct Task {
  std::string name;
  std::vector<Operand> operands;
  // Runs the task on its operands, or on the tensors given instead.
  std::function<void(const Tensors* instead)> run;
  std::shared_ptr<ExternalEvent> waits_for;
  bool unpacks = false;  // reads operands in FRACTAL_NZ
};

enum class Where { kHost, kNpu };
Operand operand(const at::Tensor& npu, Where where, std::string name);
void add(Task task);

// Computes on host aliases of the tensors, places the results, and records the task.
Tensors compute(const char* name, const Tensors& given, const std::function<Tensors(const Tensors& host)>& function);
// Records a copy on one NPU, or between an NPU and the host.
void add_copy(const at::Tensor& source, const at::Tensor& target);
// Records an operator that ran on the host: its original arguments, and its results on the NPU.
void add_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const std::vector<c10::IValue>& results,
                const std::vector<size_t>& generators);
// Records that a generator is used.
void drawing(NpuGenerator& generator, int device);

// Returns a tensor over the same memory that does not keep it alive.
at::Tensor weak(const at::Tensor& npu);
// Raises if the storage is such a weak reference whose memory is gone.
void check_reference(const c10::Storage& storage);

// Events between streams: a stream that waits for work of a capture joins that capture.
using Covered = std::map<c10::StreamId, uint64_t>;
struct Mark {
  uint64_t capture = 0;  // 0: none
  Covered covered;
};
Mark mark(const c10::Stream& stream);
void join(const Mark& mark, const c10::Stream& stream);
bool is_under_way(const Mark& mark);


}  // namespace virtual_ascend::graph

namespace virtual_ascend {

// Makes the host wait for an NPU; refused in a thread that captures on it.
void synchronize_npu(int device);

}  // namespace virtual_ascend
