// Non-blocking copies between host and NPU that are not there before they are waited for (VIRTUAL_ASCEND_COPIES).
//
// Every other operation still has finished when its call returns. A delayed copy stands in its stream's queue; its
// target holds poison until something waits: the host for the stream, a device or an event, or another stream for an
// event. What is copied to an NPU is also there for every later operation of the same stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <utility>

namespace virtual_ascend::copies {

// How far each stream's queue has come, from the point of view of an event or of a stream.
using StreamKey = std::pair<int, c10::StreamId>;
using Clock = std::map<StreamKey, uint64_t>;

void set_delayed(bool delayed);
bool delayed();

// Queues a copy between host and NPU on the current stream of the NPU, and poisons its target.
void delay(const at::Tensor& source, const at::Tensor& target);

// An operation of `device`'s current stream is about to touch device memory: what this stream copied there is there.
void before_operation(int device);

void synchronize_stream(int device, c10::StreamId stream);
void synchronize_current(int device);
void synchronize_device(int device);

// Events: the host waits for one, or a stream does.
Clock now(int device, c10::StreamId stream);
void synchronize(const Clock& clock);
void order(const Clock& clock, int device, c10::StreamId stream);

}  // namespace virtual_ascend::copies
