#include "ledger.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace virtual_ascend::ledger {
namespace {

constexpr const char* kCopy = "copy between host and NPU";

struct Worked {
  int64_t calls = 0;
  double flops = 0, bytes = 0, seconds = 0;
};

struct Sent {
  int64_t calls = 0;
  double bytes = 0;
};

struct Book {
  std::mutex mutex;
  double flops = 1, bytes = 1;
  Site site;
  int64_t clock = 0;
  std::vector<Block> blocks;
  std::unordered_map<const void*, size_t> living;
  std::map<std::string, Worked> work;
  std::map<std::pair<std::string, int>, Sent> messages;
  std::set<const void*> groups;
};

std::atomic<bool> g_on{false};
thread_local bool t_gathering = false;

Book& book() {
  static auto* made = new Book();  // outlives every tensor
  return *made;
}

void add(const void* data, size_t nbytes, Holder holder) {
  if (!on()) return;
  auto& b = book();
  // Before the lock, because this waits for Python.
  const int site = b.site ? b.site() : 0;
  std::lock_guard<std::mutex> lock(b.mutex);
  b.living[data] = b.blocks.size();
  b.blocks.emplace_back(static_cast<int64_t>(nbytes), ++b.clock, 0, holder, site);
}

}  // namespace

void start(double flops, double bytes, Site site) {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  b.flops = flops;
  b.bytes = bytes;
  b.site = std::move(site);
  g_on = true;
}

bool on() { return g_on.load(std::memory_order_relaxed); }

void allocated(const void* data, size_t nbytes) { add(data, nbytes, t_gathering ? kGathered : kOther); }
void allocated_on_host(const void* data, size_t nbytes) { add(data, nbytes, kHost); }

void freed(const void* data) {
  if (!on()) return;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  const auto found = b.living.find(data);
  if (found == b.living.end()) return;  // allocated before `start`
  std::get<2>(b.blocks[found->second]) = ++b.clock;
  b.living.erase(found);
}

void mark(const void* data, int holder) {
  if (!on()) return;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  const auto found = b.living.find(data);
  if (found == b.living.end()) return;
  auto& known = std::get<3>(b.blocks[found->second]);
  if (known == kOther || (known != kHost && holder > kGathered)) known = holder;
}

void operated(const std::string& name, double flops, double bytes) {
  if (!on()) return;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  auto& w = b.work[name];
  ++w.calls;
  w.flops += flops;
  w.bytes += bytes;
  w.seconds += std::max(flops / b.flops, bytes / b.bytes);
}

void copied(double bytes) {
  if (!on()) return;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  auto& w = b.work[kCopy];
  ++w.calls;
  w.bytes += bytes;
}

void sent(const std::string& name, const void* group, int ranks, double bytes) {
  if (!on()) return;
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  auto& m = b.messages[{name, ranks}];
  ++m.calls;
  m.bytes += bytes;
  b.groups.insert(group);
}

Gathering::Gathering() { t_gathering = true; }
Gathering::~Gathering() { t_gathering = false; }

std::vector<Block> blocks() {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  return b.blocks;
}

int64_t now() {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  return b.clock;
}

std::pair<std::vector<Work>, std::vector<Message>> take() {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  std::pair<std::vector<Work>, std::vector<Message>> out;
  for (const auto& [name, w] : b.work) out.first.emplace_back(name, w.calls, w.flops, w.bytes, w.seconds);
  for (const auto& [key, m] : b.messages) out.second.emplace_back(key.first, key.second, m.calls, m.bytes);
  b.work.clear();
  b.messages.clear();
  return out;
}

size_t groups() {
  auto& b = book();
  std::lock_guard<std::mutex> lock(b.mutex);
  return b.groups.size();
}

}  // namespace virtual_ascend::ledger
