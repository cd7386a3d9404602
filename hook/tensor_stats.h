// Statistics of a tensor in one pass over its memory, without torch.
//
// The same elements in the same layout give the same bits, whatever the processor and the number of
// threads. Sums are kept in double. Stateless and thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>

namespace trendprobe {

enum class ElementType : std::uint8_t {
  kBool,  ///< One byte; not zero is true, counted as 1.
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplexFloat16,  ///< Complex numbers are measured by their absolute values.
  kComplexFloat32,
  kComplexFloat64,
};

/// Bytes of one element.
std::size_t size_of(ElementType type);

/// A tensor's memory. Borrows everything; the memory must stay as it is while it is measured.
struct TensorView {
  /// The first element, aligned to its type's (a complex number's part's) size.
  const void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  std::span<const std::int64_t> sizes;
  /// In elements, not negative, as many as sizes. 0 repeats (expand()).
  std::span<const std::int64_t> strides;
};

struct TensorStatistics {
  /// L2 norm, maximum, minimum and mean: NaN where an element is NaN; the mean also where both
  /// infinities occur. Norm and mean of elements of at most 32 bits of floating point are rounded
  /// to float32, unless that would make them infinite. A finite tensor has a finite norm and mean,
  /// also where the square or the sum of its elements is beyond the range of its type; only a norm
  /// beyond float64 is infinite.
  double norm = 0;
  double max = 0;  ///< Never -0.
  double min = 0;  ///< Never -0.
  double mean = 0;
  std::int64_t nans = 0;
  std::int64_t infs = 0;
  std::int64_t zeros = 0;
  std::int64_t count = 0;
  /// Standard deviation as torch.std has it by default: n - 1 in the denominator, so NaN of one
  /// element; also where an element is not finite. Rounded as the mean. NaN if it was not asked
  /// for.
  double std = std::numeric_limits<double>::quiet_NaN();
};

/// What is measured beside everything else.
enum class MeasureAlso : std::uint8_t {
  kNothing,
  /// A second pass over each block of elements while it is in the cache.
  kStandardDeviation,
};

/// Calls body(0) ... body(n - 1), in any order and on any threads, and returns when all have
/// returned. The body does not throw.
using ParallelFor =
    std::function<void(std::int64_t n, const std::function<void(std::int64_t)>& body)>;

/// Nothing where there is nothing to measure: no element or no memory. `parallel_for` is called at
/// most twice, and only for tensors of more than 49,152 elements; without one, the caller's thread
/// does everything. Throws std::bad_alloc.
std::optional<TensorStatistics> measure(const TensorView& tensor,
                                        const ParallelFor& parallel_for = {},
                                        MeasureAlso also = MeasureAlso::kNothing);

}  // namespace trendprobe
