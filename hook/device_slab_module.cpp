#include "hook/device_slab_module.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hook/device_slab.h"

namespace py = pybind11;

namespace trendprobe {
namespace {

std::optional<std::uint32_t> add(DeviceSlab& slab, const py::object& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return std::nullopt;
  const DeviceSlab::Added added = slab.add(THPVariable_Unpack(tensor.ptr()));
  if (added.outcome != DeviceSlab::Outcome::kQueued) return std::nullopt;
  return added.row;
}

std::vector<double> statistics_of(DeviceRows& rows, std::uint32_t row) {
  constexpr std::uint32_t kFields = 8;
  std::vector<double> values;
  for (std::uint32_t field = 0; field < kFields; ++field) {
    values.push_back(pending_value(row, field));
  }
  rows.resolve(values);
  return values;
}

}  // namespace

void define_device_slab(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<DeviceRows, std::shared_ptr<DeviceRows>>(module, "DeviceRows")
      .def("statistics", &statistics_of, py::arg("row"), Unlocked());
  py::class_<DeviceSlab>(module, "DeviceSlab")
      .def(py::init<>())
      .def("add", &add, py::arg("tensor"))
      .def("take", &DeviceSlab::take, Unlocked());
}

}  // namespace trendprobe
