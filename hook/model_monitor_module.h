// ModelMonitor for Python; _tensor_stats.pyi documents it.
#pragma once

#include <pybind11/pybind11.h>

namespace trendprobe {

/// Adds the class ModelMonitor. Throws pybind11::error_already_set.
void define_model_monitor(pybind11::module_& module);

}  // namespace trendprobe
