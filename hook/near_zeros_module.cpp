#include "hook/near_zeros_module.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <optional>

#include "hook/near_zeros.h"
#include "hook/torch_tensor_stats.h"

namespace py = pybind11;

namespace trendprobe {

void define_near_zeros(py::module_& module) {
  module.def(
      "count_near_zeros",
      [](const py::handle& tensor, double limit) -> std::optional<std::int64_t> {
        if (!THPVariable_Check(tensor.ptr())) return std::nullopt;
        // Keeps the memory alive while the lock is given back.
        const at::Tensor found = measurable(THPVariable_Unpack(tensor.ptr()));
        if (!found.defined()) return std::nullopt;
        const py::gil_scoped_release unlocked;
        return count_near_zeros(found, limit);
      },
      py::arg("tensor"), py::arg("limit"), py::pos_only());
}

}  // namespace trendprobe
