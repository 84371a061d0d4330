// A graph like torch_npu's NPUGraph, the groups of its tasks whose arguments can be updated, and the events that it
// waits for.
#pragma once

#include "graph.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace virtual_ascend::graph {

class Pool;
class Graph;

// An event that is recorded outside a graph and waited for inside it, or the other way round.
struct ExternalEvent : std::enable_shared_from_this<ExternalEvent> {
  bool set = false;
  std::weak_ptr<Graph> waiting;

  void record(const c10::Stream& stream);
  void wait(const c10::Stream& stream);
  void reset(const c10::Stream& stream);
};

struct TaskGroup {
  std::weak_ptr<Graph> graph;
  size_t first = 0, last = 0;
};

class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph() = default;
  ~Graph() { reset(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void capture_begin(const PoolId& pool, const std::string& error_mode);
  void capture_end();
  void replay();
  void reset();
  PoolId pool() const;
  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  friend struct ExternalEvent;
  friend void add(Task task);
  friend void begin_group(const c10::Stream& stream);
  friend TaskGroup end_group(const c10::Stream& stream);
  friend void end_update(const c10::Stream& stream);

  void go_on();
  void run(size_t number);
  // Finds operands whose memory is gone, and reports them.
  void look_at_memory();
  void say(const Task& task, const Operand& operand);

  std::vector<Task> tasks_;
  std::vector<std::vector<size_t>> dead_;  // for each task, its operands
  std::set<std::pair<size_t, size_t>> said_;
  std::shared_ptr<Pool> pool_;
  PoolId pool_id_{0, 0};
  int device_ = 0;
  bool ready_ = false, shared_ = false;
  uint64_t looked_at_ = 0;  // changes() at the last look
  size_t next_ = 0;
  bool waits_ = false;
  c10::StreamId stream_ = 0;
  size_t group_ = 0;
  bool in_group_ = false;
};

void begin_group(const c10::Stream& stream);
TaskGroup end_group(const c10::Stream& stream);
void begin_update(const c10::Stream& stream, const TaskGroup& group);
void end_update(const c10::Stream& stream);

// Raises if this thread captures on the NPU, or if a replay waits there.
void refuse_to_synchronise(int device);

// Sets the function that reports a replay reading freed memory, and whether that is an error.
void set_reporter(std::function<void(const std::string&)> report, bool strict);

}  // namespace virtual_ascend::graph
