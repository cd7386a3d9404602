// DeviceSlab for Python; _tensor_stats.pyi documents it.
#pragma once

#include <pybind11/pybind11.h>

namespace trendprobe {

/// Adds the classes DeviceSlab and DeviceRows. Throws pybind11::error_already_set.
void define_device_slab(pybind11::module_& module);

}  // namespace trendprobe
