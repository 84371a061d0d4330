// How the ranks of a communicator find each other, for libhccl.so (SIMULATED). Only libhccl.cpp includes this file.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "listener.h"
#include "wire.h"

namespace {

// Returns a connection to a rank that has proved its identity. A crowd of strangers may have pushed the first attempt
// out.
Socket call(const sockaddr_in& address, const Root& root, const Hello& hello) {
  const auto deadline = Clock::now() + std::chrono::seconds(connect_seconds());
  auto pause = std::chrono::milliseconds(20);
  while (true) {
    try {
      Socket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      made.patience(deadline - Clock::now());
      if (connect(made.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) throw Failure{kConnect};
      made.write(&hello, sizeof(hello));
      Secret answer{};
      made.read(answer.data(), answer.size());
      if (equal(answer, root.answer)) return made;
      say("the process at %s is not part of rank %u's job", text_of(address).c_str(), hello.rank);
      throw Failure{kConnect};
    } catch (const Failure& failure) {
      if (failure.result != kTransfer || Clock::now() + pause >= deadline) throw;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(1000));
  }
}

struct Comm {
  uint32_t rank, size;
  std::map<uint32_t, Socket> peers;
};

std::mutex g_mutex;
std::map<uint64_t, std::unique_ptr<Listener>> g_roots;  // for the root infos that this process has returned

Root open_root() {
  const in_addr loopback{htonl(INADDR_LOOPBACK)};
  auto listener = std::make_unique<Listener>(asked_address().value_or(loopback));
  Root root{};
  std::memcpy(root.magic, kMagic, sizeof(kMagic));
  draw(&root.id, sizeof(root.id));
  draw(root.call.data(), root.call.size());
  draw(root.answer.data(), root.answer.size());
  root.address = listener->address().sin_addr.s_addr;
  root.port = listener->address().sin_port;
  std::lock_guard<std::mutex> lock(g_mutex);
  g_roots[root.id] = std::move(listener);
  return root;
}

std::unique_ptr<Listener> taken_root(const Root& root) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_roots.find(root.id);
  if (found == g_roots.end()) return nullptr;
  auto listener = std::move(found->second);
  g_roots.erase(found);
  return listener;
}

// The root's process tells every rank where the others listen; then each rank connects to all lower ranks.
std::unique_ptr<Comm> join(uint32_t size, const Root& root, uint32_t rank) {
  const auto hub = taken_root(root);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = root.address;
  at.sin_port = root.port;
  const auto asked = asked_address();
  Listener own(hub != nullptr ? hub->address().sin_addr : asked.has_value() ? *asked : address_towards(at));
  Hello mine{{}, root.call, rank, own.address()};
  std::memcpy(mine.magic, kMagic, sizeof(kMagic));
  std::set<uint32_t> others, above;
  for (uint32_t other = 0; other < size; ++other) {
    if (other != rank) others.insert(other);
    if (other > rank) above.insert(other);
  }
  Strangers strangers(rank);
  std::vector<sockaddr_in> addresses(size);
  if (hub != nullptr) {
    addresses[rank] = own.address();
    const auto callers = hub->receive(root, others, strangers);
    for (const auto& [other, caller] : callers) addresses[other] = caller.address;
    for (const auto& [other, caller] : callers) {
      caller.socket.patience(std::chrono::seconds(connect_seconds()));
      caller.socket.write(addresses.data(), size * sizeof(sockaddr_in));
    }
  } else {
    call(at, root, mine).read(addresses.data(), size * sizeof(sockaddr_in));
  }
  auto comm = std::make_unique<Comm>(Comm{rank, size, {}});
  for (uint32_t other = 0; other < rank; ++other) comm->peers.emplace(other, call(addresses[other], root, mine));
  for (auto& [other, caller] : own.receive(root, above, strangers)) comm->peers.emplace(other, std::move(caller.socket));
  for (const auto& [other, peer] : comm->peers) peer.patience(std::chrono::seconds(seconds("HCCL_EXEC_TIMEOUT", 1836)));
  return comm;
}

}  // namespace
