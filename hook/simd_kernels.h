// The inner loops of the statistics kernel, once for each instruction set.
//
// Element i of a block belongs to lane i % kLanes, each lane adds up on its own, and the lanes are
// added in one fixed tree. So every instruction set gives the same bits. Stateless, thread-safe.
// REQUIRES, for all: denormals are neither flushed nor taken as zero, rounding is to nearest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trendprobe::simd {

inline constexpr std::size_t kLanes = 16;
/// The most elements that one call of a block function may get.
inline constexpr std::size_t kMaxBlock = 4096;

/// Plain sums over one block. `max` and `min` mean nothing where an element is NaN, and are -inf
/// and +inf where every element is. A NaN or an infinity makes `sum_of_squares` non-finite; a
/// float32 block's is finite otherwise.
struct BlockSums {
  double sum;
  double sum_of_squares;
  double max;
  double min;
  std::int64_t zeros;
};

/// Sums over one block of the elements' differences from a number.
struct BlockDeviations {
  double sum;
  double sum_of_squares;
};

/// One instruction set's functions.
struct Kernels {
  const char* name;
  /// REQUIRES: 0 < n <= kMaxBlock. No alignment is needed beyond the element's own.
  BlockSums (*sum_float32)(const float* elements, std::size_t n);
  BlockSums (*sum_float64)(const double* elements, std::size_t n);
  BlockDeviations (*deviations_float32)(const float* elements, std::size_t n, double from);
  BlockDeviations (*deviations_float64)(const double* elements, std::size_t n, double from);
  /// Exact conversions of n elements.
  void (*float16_to_float32)(const std::uint16_t* from, float* to, std::size_t n);
  void (*bfloat16_to_float32)(const std::uint16_t* from, float* to, std::size_t n);
};

/// What any processor of the architecture runs.
extern const Kernels kBaselineKernels;
#ifdef TRENDPROBE_X86_64_KERNELS
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

/// The fastest of those that this processor runs.
const Kernels& best_kernels();

}  // namespace trendprobe::simd
