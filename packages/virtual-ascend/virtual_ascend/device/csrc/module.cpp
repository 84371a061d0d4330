// The extension's Python interface, used by torch_npu.npu and the hccl backend.
#include "alias.h"
#include "allocator.h"
#include "alone.h"
#include "copies.h"
#include "fallback.h"
#include "faults.h"
#include "generator.h"
#include "graph.h"
#include "hccl.h"
#include "ledger.h"
#include "phantom.h"
#include "runtime.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;
using namespace virtual_ascend;

namespace virtual_ascend::pool {
void offer(py::module_& m);
}
namespace virtual_ascend::graph {
void offer(py::module_& m);
}
namespace virtual_ascend::formats {
void offer(py::module_& m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::module_::import("torch.distributed");  // registers c10d::Backend, the base class below
  register_fallbacks();

  m.def("configure", &configure);
  m.def("init", &initialise);
  m.def("is_initialized", &initialised);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("device_count", [] { return device_count(); });
  m.def("visible_devices", &visible_devices);
  m.def("current_device", [] { return current_device(); });
  m.def("check_index", &check_index);
  m.def("set_device", &set_device);
  m.def("current_stream_id", [](int device) { return current_stream(device).id(); });
  m.def("new_stream_id", [](int device) { return new_stream(device).id(); });
  m.def("refuse_streams_of_torch", &refuse_streams_of_torch);
  m.def("set_stream_id", [](int device, int64_t id) {
    exchange_stream(c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)), id));
  });

  m.def("set_delayed_copies", &copies::set_delayed);
  m.def("synchronize_device", &synchronize_npu, py::call_guard<py::gil_scoped_release>());

  m.def("set_phantom", &phantom::set_threshold);
  m.def("phantom", &phantom::threshold);
  m.def("is_phantom", [](const at::Tensor& tensor) { return phantom::is(tensor); });
  m.def("is_phantom_address", [](uintptr_t data) { return phantom::is(reinterpret_cast<void*>(data)); });

  m.def("die_at_collective", &faults::die_at_collective);
  m.def("slow_collectives", &faults::slow_collectives);
  m.def("limit_bandwidth", &faults::limit_bandwidth);
  m.def("fail_allocation", &faults::fail_allocation);
  m.def("fail_allocations_above", &faults::fail_allocations_above);
  m.def("set_rank", &faults::set_rank);
  m.def("rank", &faults::rank);

  m.def("set_total_memory", &set_total_memory);
  m.def("total_memory", &total_memory);
  m.def("memory_stats", [](int device) {
    free_dropped();
    const auto s = memory_stats(device);
    py::dict out;
    const auto put = [&out](const std::string& name, const Stat& stat) {
      out[(name + ".current").c_str()] = stat.current;
      out[(name + ".peak").c_str()] = stat.peak;
      out[(name + ".allocated").c_str()] = stat.allocated;
      out[(name + ".freed").c_str()] = stat.freed;
    };
    const Stats none{};  // no block is split or oversized
    const std::pair<const char*, const Stats*> counters[] = {
        {"active", &s.blocks},           {"active_bytes", &s.allocated},   {"allocated_bytes", &s.allocated},
        {"allocation", &s.blocks},       {"inactive_split", &none},        {"inactive_split_bytes", &none},
        {"requested_bytes", &s.requested}, {"reserved_bytes", &s.reserved}, {"segment", &s.segments}};
    for (const auto& [name, stats] : counters) {
      put(std::string(name) + ".all", (*stats)[kAll]);
      put(std::string(name) + ".large_pool", (*stats)[kLarge]);
      put(std::string(name) + ".small_pool", (*stats)[kSmall]);
    }
    put("oversize_allocations", Stat());
    put("oversize_segments", Stat());
    out["max_split_size"] = -1;
    out["num_alloc_retries"] = 0;  // no cache that could be emptied for a retry
    out["num_ooms"] = s.ooms;
    return out;
  });
  m.def("reset_peak", &reset_peak);
  m.def("reset_accumulated", &reset_accumulated);
  m.def("set_memory_fraction", &set_memory_fraction);
  m.def("empty_cache", &empty_cache);
  pool::offer(m);
  graph::offer(m);
  formats::offer(m);

  m.def(
      "start_ledger",
      [](double flops, double bytes, ledger::Site site) {
        ledger::start(flops, bytes, std::move(site));
        if (phantom::on()) phantom::take_host();
      },
      py::arg("flops"), py::arg("bytes"), py::arg("site") = py::none());
  m.def("ledger_clock", &ledger::now);
  m.def("ledger_blocks", &ledger::blocks);
  m.def("take_ledger", &ledger::take);
  m.def("groups_in_ledger", &ledger::groups);
  m.def("mark_in_ledger", [](uintptr_t data, int holder) { ledger::mark(reinterpret_cast<void*>(data), holder); });
  m.def("work_in_ledger", &ledger::operated);

  m.def("default_generator", [](int device) { return default_generator(device); });
  m.def("cpu_alias", &cpu_alias, "Returns a CPU tensor over an NPU tensor's memory.");
  m.def("npu_alias", &npu_alias, "Returns an NPU tensor over a CPU tensor's memory.");

  m.def("move_storage", &move_storage, "Moves an NPU tensor's storage into a CPU tensor's memory.");

  py::class_<AloneBackend, c10d::Backend, c10::intrusive_ptr<AloneBackend>>(m, "AloneBackend", py::dynamic_attr()).def(py::init<int, int>());

  py::class_<HcclBackend, c10d::Backend, c10::intrusive_ptr<HcclBackend>>(m, "HcclBackend")
      .def(py::init<int, int, c10::intrusive_ptr<c10d::Backend>, std::chrono::milliseconds>())
      // Communication operators get the group by this name, which is equal on all of its ranks.
      .def("get_hccl_comm_name",
           [](HcclBackend& group, int rank, const py::kwargs&) {
             TORCH_CHECK(rank >= 0, "Invalid rank ", rank);
             return "virtual_hccl_" + group.getGroupUid();
           },
           py::arg("rankid"));
}
