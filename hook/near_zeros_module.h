// count_near_zeros() for Python; _tensor_stats.pyi documents it.
#pragma once

#include <pybind11/pybind11.h>

namespace trendprobe {

/// Adds the function. Throws pybind11::error_already_set.
void define_near_zeros(pybind11::module_& module);

}  // namespace trendprobe
