// Streams and events. What the CPU computes is done when its call returns. Collectives are not, because another rank
// may never arrive: each runs in a thread, streams and events know what they wait for, and whoever touches their memory
// waits.
#include "cann.h"
#include "tickets.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

using namespace virtual_ascend_cann;

namespace {

struct Stream {
  int id = 0;
  Tickets waits;
};

struct Event {
  bool recorded = false;
  Clock::time_point time;
  Tickets waits;
};

struct Job {
  Tickets before;
  int (*run)(void*);
  void* argument;
  std::shared_ptr<Ticket> ticket;
};

// One communicator's thread.
class Queue {
 public:
  Queue() : thread_([this] { work(); }) { thread_.detach(); }
  void push(Job job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    ++left_;
    changed_.notify_one();
  }
  bool idle() const { return left_ == 0; }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      for (const auto& ticket : job.before) ticket->wait(nullptr);
      job.ticket->finish(job.run(job.argument));
      --left_;
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::atomic<int> left_{0};
  std::thread thread_;
};

// Never destroyed: threads may outlive static destructors.
struct State {
  std::atomic<int> pending{0};
  std::mutex mutex;  // protects the tickets of all streams and events
  Stream usual;
  std::map<void*, Queue*> queues;
  Tickets all;
  int streams = 0;
};
State& state() {
  static auto* it = new State();
  return *it;
}

// The stream of this thread's last recorded event.
thread_local void* t_recorded = nullptr;

Stream& stream_of(void* stream) { return stream == nullptr ? state().usual : *static_cast<Stream*>(stream); }

void forget_done(Tickets& tickets) {
  Tickets left;
  for (auto& ticket : tickets)
    if (!ticket->done() || ticket->result() != 0) left.push_back(std::move(ticket));
  tickets = std::move(left);
}

int wait_for(const Tickets& tickets, int milliseconds = -1) {
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  for (const auto& ticket : tickets)
    if (!ticket->wait(milliseconds < 0 ? nullptr : &end)) return kTimedOut;
  for (const auto& ticket : tickets)
    if (ticket->result() != 0) return kCommunication;
  return kSuccess;
}

}  // namespace

namespace virtual_ascend_cann {

Ticket::Ticket(int device) : device_(device) { ++state().pending; }
Ticket::Ticket(int device, Delayed delayed) : Ticket(device) { delayed_ = std::make_unique<Delayed>(std::move(delayed)); }

void Ticket::finish(int result) {
  std::lock_guard<std::mutex> lock(mutex_);
  --state().pending;
  result_ = result;
  done_ = true;
  changed_.notify_all();
}

bool Ticket::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

bool Ticket::wait(const Clock::time_point* end) {
  make_any();
  std::unique_lock<std::mutex> lock(mutex_);
  if (end == nullptr) {
    changed_.wait(lock, [&] { return done_; });
    return true;
  }
  return changed_.wait_until(lock, *end, [&] { return done_; });
}

void Ticket::make(const std::function<bool(const Delayed&)>& wanted) {
  // Outlives the lock, because releasing a tensor may take the GIL.
  std::unique_ptr<Delayed> made;
  std::lock_guard<std::mutex> lock(mutex_);
  if (delayed_ == nullptr || !wanted(*delayed_)) return;
  delayed_->copy();
  made = std::move(delayed_);
  --state().pending;
  done_ = true;
  changed_.notify_all();
}

bool Ticket::is_delayed() {
  std::lock_guard<std::mutex> lock(mutex_);
  return delayed_ != nullptr;
}

int Ticket::result() {
  std::lock_guard<std::mutex> lock(mutex_);
  return result_;
}

Tickets waits_of(void* stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  forget_done(stream_of(stream).waits);
  return stream_of(stream).waits;
}

void add(void* stream, std::shared_ptr<Ticket> ticket) {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  stream_of(stream).waits.push_back(ticket);
  forget_done(s.all);
  s.all.push_back(std::move(ticket));
}

int device_here() {
  int device = 0;
  return aclrtGetDevice(&device) == kSuccess ? device : 0;
}

}  // namespace virtual_ascend_cann

extern "C" {

void virtual_ascend_cann_enqueue(void* queue, void* stream, int (*run)(void*), void* argument) {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto& found = s.queues[queue];
  if (found == nullptr) found = new Queue();
  auto ticket = std::make_shared<Ticket>(device_here());
  auto& waits = stream_of(stream).waits;
  found->push({waits, run, argument, ticket});
  waits = {ticket};
  forget_done(s.all);
  s.all.push_back(ticket);
}

int virtual_ascend_cann_is_idle(void* queue) {
  auto& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  const auto found = s.queues.find(queue);
  return found == s.queues.end() || found->second->idle();
}

int virtual_ascend_cann_is_pending() { return state().pending > 0; }
void* virtual_ascend_cann_last_recorded() { return t_recorded; }

// Does not wait for copies to the host, because only the host reads their results.
void virtual_ascend_cann_settle(void* stream) {
  for (const auto& ticket : waits_of(stream)) {
    ticket->make([](const Delayed& copy) { return !copy.to_host; });
    if (!ticket->is_delayed()) ticket->wait(nullptr);
  }
}

int aclrtCreateStream(void** stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto* made = new Stream();
  made->id = ++state().streams;
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
  *id = stream_of(stream).id;
  return kSuccess;
}
int aclrtStreamQuery(void* stream, int* status) {
  *status = 0;  // ACL_STREAM_STATUS_COMPLETE
  for (const auto& ticket : waits_of(stream)) {
    ticket->make_any();
    if (!ticket->done()) *status = 1;
  }
  return kSuccess;
}
int aclrtSynchronizeStream(void* stream) { return wait_for(waits_of(stream)); }
int aclrtSynchronizeStreamWithTimeout(void* stream, int milliseconds) { return wait_for(waits_of(stream), milliseconds); }

int aclrtSynchronizeDeviceWithTimeout(int milliseconds) {
  Tickets all;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (const auto& ticket : state().all)
      if (ticket->device() == device_here()) all.push_back(ticket);
  }
  return wait_for(all, milliseconds);
}
int aclrtSynchronizeDevice() { return aclrtSynchronizeDeviceWithTimeout(-1); }

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
int aclrtRecordEvent(void* event, void* stream) {
  t_recorded = stream;
  auto* e = static_cast<Event*>(event);
  e->waits = waits_of(stream);
  e->recorded = true;
  e->time = Clock::now();
  return kSuccess;
}
int aclrtResetEvent(void*, void*) { return kSuccess; }
int aclrtStreamWaitEvent(void* stream, void* event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto& waits = stream_of(stream).waits;
  const auto& more = static_cast<Event*>(event)->waits;
  waits.insert(waits.end(), more.begin(), more.end());
  return kSuccess;
}
int aclrtSynchronizeEvent(void* event) { return wait_for(static_cast<Event*>(event)->waits); }
int aclrtSynchronizeEventWithTimeout(void* event, int milliseconds) { return wait_for(static_cast<Event*>(event)->waits, milliseconds); }
int aclrtQueryEventStatus(void* event, int* status) {
  *status = 1;  // ACL_EVENT_RECORDED_STATUS_COMPLETE
  for (const auto& ticket : static_cast<Event*>(event)->waits) {
    ticket->make_any();
    if (!ticket->done()) *status = 0;
  }
  return kSuccess;
}
int aclrtQueryEventWaitStatus(void* event, int* status) {
  aclrtQueryEventStatus(event, status);
  *status = *status == 1 ? 0 : 1;  // ACL_EVENT_WAIT_STATUS_COMPLETE is 0
  return kSuccess;
}
int aclrtQueryEvent(void* event, int* status) { return aclrtQueryEventWaitStatus(event, status); }
int aclrtEventElapsedTime(float* milliseconds, void* start, void* end) {
  const auto* a = static_cast<Event*>(start);
  const auto* b = static_cast<Event*>(end);
  if (!a->recorded || !b->recorded) return kInvalidParameter;
  *milliseconds = std::chrono::duration<float, std::milli>(b->time - a->time).count();
  return kSuccess;
}
}
