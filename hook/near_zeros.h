// The elements of a tensor that are nearly zero: what msProbe's monitor counts as "zeros".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trendprobe {

/// How many elements have a magnitude below `limit`, which is rounded to the tensor's type first,
/// as torch.abs(tensor) < limit does; a NaN has not. Nothing unless it is a floating-point tensor
/// of 16, 32 or 64 bits whose elements fill one piece of memory, in whatever order. REQUIRES:
/// measurable() returned it. Thread-safe; the Python lock is not needed. Throws std::bad_alloc.
std::optional<std::int64_t> count_near_zeros(const at::Tensor& measurable, double limit);

}  // namespace trendprobe
