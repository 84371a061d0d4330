// The Python interface of graphs, used by torch_npu.npu and by the operators written in Python.
#include "alias.h"
#include "graph_memory.h"
#include "graph_replay.h"
#include "runtime.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace virtual_ascend::graph {
namespace {

c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, static_cast<c10::DeviceIndex>(device)), id);
}

// A Python function that a graph holds; it may be freed while nobody holds the GIL.
std::shared_ptr<py::function> held(py::function function) {
  return {new py::function(std::move(function)), [](py::function* it) {
            if (Py_IsInitialized() == 0) return;
            py::gil_scoped_acquire lock;
            delete it;
          }};
}

// Records one operator written in Python: each replay calls `again` with the tensors.
void add_call(std::string name, const Tensors& tensors, const std::vector<std::string>& names, py::function again) {
  Task task{std::move(name), {}, nullptr, nullptr};
  Tensors own;
  for (size_t i = 0; i < tensors.size(); ++i) {
    task.operands.push_back(operand(tensors[i], Where::kNpu, names.at(i)));
    own.push_back(task.operands.back().tensor);
  }
  task.run = [own, function = held(std::move(again))](const Tensors* instead) {
    py::gil_scoped_acquire lock;
    (*function)(instead == nullptr ? own : *instead);
  };
  add(std::move(task));
}

py::list tasks_of(const Graph& graph) {
  py::list out;
  for (const auto& task : graph.tasks()) {
    py::list operands;
    for (const auto& operand : task.operands) {
      const auto& tensor = operand.tensor;
      operands.append(py::make_tuple(operand.name, reinterpret_cast<uintptr_t>(tensor.const_data_ptr()), tensor.sizes().vec(),
                                     tensor.strides().vec(), c10::toString(tensor.scalar_type())));
    }
    out.append(py::make_tuple(task.name, operands));
  }
  return out;
}

}  // namespace

void offer(py::module_& m) {
  py::class_<TaskGroup>(m, "TaskGroup");
  py::class_<ExternalEvent, std::shared_ptr<ExternalEvent>>(m, "ExternalEvent")
      .def(py::init<>())
      .def("record", [](ExternalEvent& event, int device, int64_t id) { event.record(stream_of(device, id)); }, py::call_guard<py::gil_scoped_release>())
      .def("wait", [](ExternalEvent& event, int device, int64_t id) { event.wait(stream_of(device, id)); })
      .def("reset", [](ExternalEvent& event, int device, int64_t id) { event.reset(stream_of(device, id)); });
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init<>())
      .def("capture_begin", &Graph::capture_begin)
      .def("capture_end", &Graph::capture_end)
      .def("replay", &Graph::replay, py::call_guard<py::gil_scoped_release>())
      .def("reset", &Graph::reset)
      .def("pool", &Graph::pool)
      .def("tasks", &tasks_of);
  m.def("new_graph_pool", [] { return new_pool_id(true); });
  m.def("is_recording", &recording);
  m.def("is_capturing", [](int device) { return captures(device); });
  m.def("begin_task_group", [](int device, int64_t id) { begin_group(stream_of(device, id)); });
  m.def("end_task_group", [](int device, int64_t id) { return end_group(stream_of(device, id)); });
  m.def("begin_task_update", [](int device, int64_t id, const TaskGroup& group) { begin_update(stream_of(device, id), group); });
  m.def("end_task_update", [](int device, int64_t id) { end_update(stream_of(device, id)); });
  m.def("check_order", &check_order);
  m.def("save_for_capture", &save);
  m.def("place_in_graph", [](const at::Tensor& tensor) { return placed(cpu_alias(tensor), tensor.device().index()); });
  m.def("inside_operator", [](const py::function& function) {
    Inside inside;
    return function();
  });
  m.def("add_to_graph", &add_call);
  m.def("weak_tensor", &weak);
  m.def("set_graph_reporter", [](py::function report, bool strict) {
    set_reporter([report = held(std::move(report))](const std::string& text) {
      py::gil_scoped_acquire lock;
      (*report)(text);
    }, strict);
  });
}

}  // namespace virtual_ascend::graph
