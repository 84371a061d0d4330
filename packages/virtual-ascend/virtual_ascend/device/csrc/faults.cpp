#include "faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace virtual_ascend::faults {
namespace {

struct At {
  int64_t count;
  int rank;
};

struct Slow {
  double seconds;
  int rank;
};

// Filled while the device is loaded, only read afterwards.
struct Plan {
  std::vector<At> deaths, allocations, sizes;
  std::vector<Slow> links, bandwidths;
};

Plan& plan() {
  static Plan* it = new Plan();  // tensors may outlive static destructors
  return *it;
}

std::atomic<int64_t> g_collectives{0};
std::atomic<int64_t> g_allocations{0};
std::atomic<int> g_rank{kAnyRank};

bool here(int wanted) { return wanted == kAnyRank || wanted == rank(); }

}  // namespace

void die_at_collective(int64_t collective, int rank) { plan().deaths.push_back({collective, rank}); }
void slow_collectives(double seconds, int rank) { plan().links.push_back({seconds, rank}); }
void limit_bandwidth(double gigabytes_per_second, int rank) { plan().bandwidths.push_back({1e-9 / gigabytes_per_second, rank}); }
void fail_allocation(int64_t allocation, int rank) { plan().allocations.push_back({allocation, rank}); }
void fail_allocations_above(int64_t bytes, int rank) { plan().sizes.push_back({bytes, rank}); }

void set_rank(int rank) {
  int unknown = kAnyRank;
  g_rank.compare_exchange_strong(unknown, rank);
}

int rank() {
  const int known = g_rank;
  if (known != kAnyRank) return known;
  const char* text = std::getenv("RANK");
  if (text == nullptr || *text == '\0') return kAnyRank;
  set_rank(std::atoi(text));
  return g_rank;
}

// All messages of one process share one link: a collective's bytes move after those of earlier ones.
double until_moved(double seconds) {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point free_at;
  std::lock_guard<std::mutex> lock(mutex);
  const auto now = Clock::now();
  free_at = std::max(free_at, now) + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  return std::chrono::duration<double>(free_at - now).count();
}

double at_collective(const char* name, int64_t bytes) {
  const auto now = ++g_collectives;
  for (const auto& death : plan().deaths) {
    if (now != death.count || !here(death.rank)) continue;
    std::fprintf(stderr, "virtual-ascend: fault: rank %d dies at its collective %lld (%s) because of VIRTUAL_ASCEND_FAULTS\n", rank(),
                 static_cast<long long>(now), name);
    std::fflush(stderr);
    ::kill(::getpid(), SIGKILL);  // no clean-up: this is how a failed machine looks to the others
  }
  double seconds = 0;
  for (const auto& link : plan().links)
    if (here(link.rank)) seconds += link.seconds;
  for (const auto& link : plan().bandwidths)
    if (here(link.rank)) seconds += until_moved(link.seconds * static_cast<double>(bytes));
  return seconds;
}

bool allocation_fails(int64_t bytes) {
  const auto& p = plan();
  if (p.allocations.empty() && p.sizes.empty()) return false;
  const auto now = ++g_allocations;
  for (const auto& one : p.allocations)
    if (now == one.count && here(one.rank)) return true;
  for (const auto& size : p.sizes)
    if (bytes > size.count && here(size.rank)) return true;
  return false;
}

}  // namespace virtual_ascend::faults
