// Non-blocking copies between host and NPU that only arrive when something waits for them (VIRTUAL_ASCEND_COPIES).
//
// All other operations still finish before their call returns. A delayed copy sits in its stream's queue, and its
// target holds poison until the host waits for the stream, a device, or an event, or until another stream waits for an
// event. Later operations on the same stream see what was copied to an NPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <utility>

namespace virtual_ascend::copies {

// How far each stream's queue has advanced, as seen by an event or a stream.
using StreamKey = std::pair<int, c10::StreamId>;
using Clock = std::map<StreamKey, uint64_t>;

void set_delayed(bool delayed);
bool delayed();

// Queues a copy between host and NPU on the NPU's current stream and poisons its target.
void delay(const at::Tensor& source, const at::Tensor& target);

// Called before an operation on `device`'s current stream touches device memory: finishes this stream's copies to the
// NPU.
void before_operation(int device);

void synchronize_stream(int device, c10::StreamId stream);
void synchronize_current(int device);
void synchronize_device(int device);

// Events: `now` is what an event records; the host or a stream waits for it.
Clock now(int device, c10::StreamId stream);
void synchronize(const Clock& clock);
void order(const Clock& clock, int device, c10::StreamId stream);

}  // namespace virtual_ascend::copies
