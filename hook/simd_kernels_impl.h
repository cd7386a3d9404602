// The bodies of simd_kernels.h, compiled once for each instruction set: include it in one source
// file a set, after defining TRENDPROBE_KERNELS (the constant's name) and TRENDPROBE_KERNELS_NAME.
//
// Everything is in an unnamed namespace and nothing of the standard library is called: an inline
// function that the linker shares between files could otherwise be this file's copy, with
// instructions that the processor does not have.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "hook/simd_kernels.h"

// NOLINTBEGIN(misc-definitions-in-headers): on purpose, see above.
namespace trendprobe::simd {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
constexpr std::size_t kFloats = kVectorBytes / sizeof(float);
constexpr std::size_t kDoubles = kVectorBytes / sizeof(double);

// NOLINTBEGIN(modernize-use-using): the attribute is only portable on a typedef.
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t Int32s __attribute__((vector_size(kVectorBytes)));
typedef std::int64_t Int64s __attribute__((vector_size(kVectorBytes)));
// NOLINTEND(modernize-use-using)

constexpr double kInfinity = __builtin_inf();

template <class Vector, class Element>
inline Vector load(const Element* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

// Adds the lanes up: 0+8, 1+9, ...; 0+4, ...; 0+2, 1+3; 0+1.
inline double add_lanes(double* lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// What is left of a block after its last full row of lanes, and the end of every block.
template <class Element>
inline void add_rest(const Element* elements, std::size_t n, double* sums, double* squares,
                     BlockSums& block) {
  for (std::size_t lane = 0; lane < n; ++lane) {
    const double element = elements[lane];
    sums[lane] += element;
    squares[lane] += element * element;
    block.max = element > block.max ? element : block.max;
    block.min = element < block.min ? element : block.min;
    block.zeros += element == 0;
  }
  block.sum = add_lanes(sums);
  block.sum_of_squares = add_lanes(squares);
}

// Adds up what the lanes hold, and the rest of the block.
template <std::size_t kCount, class Vector, class Counts, class Element>
inline BlockSums finish_block(const Vector& max, const Vector& min, const Counts& zeros,
                              const Doubles* sum, const Doubles* square, const Element* rest,
                              std::size_t n) {
  BlockSums block = {0, 0, -kInfinity, kInfinity, 0};
  for (std::size_t lane = 0; lane < kCount; ++lane) {
    block.max = max[lane] > block.max ? max[lane] : block.max;
    block.min = min[lane] < block.min ? min[lane] : block.min;
    block.zeros += zeros[lane];
  }
  double sums[kLanes];
  double squares[kLanes];
  __builtin_memcpy(sums, sum, sizeof(sums));
  __builtin_memcpy(squares, square, sizeof(squares));
  add_rest(rest, n, sums, squares, block);
  return block;
}

// `value` where it is greater (less), else `limit`: also where value is NaN. Compilers make two
// instructions of the comparison.
inline Floats greater_of(Floats value, Floats limit) {
#if defined(__AVX512F__)
  return _mm512_mask_max_ps(limit, 0xFFFF, value, limit);
#elif defined(__AVX2__)
  return _mm256_max_ps(value, limit);
#else
  return value > limit ? value : limit;
#endif
}
inline Floats less_of(Floats value, Floats limit) {
#if defined(__AVX512F__)
  return _mm512_mask_min_ps(limit, 0xFFFF, value, limit);
#elif defined(__AVX2__)
  return _mm256_min_ps(value, limit);
#else
  return value < limit ? value : limit;
#endif
}

// sum + value², for a value that is a float32: its square is exact in double, so that one rounding
// gives the bits of two.
inline Doubles plus_square(Doubles sum, Doubles value) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(value, value, sum);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(value, value, sum);
#else
  return sum + value * value;
#endif
}

// One less for every lane that is zero.
inline void count_zeros(Int32s& minus_zeros, Floats value) {
#if defined(__AVX512F__)
  const __mmask16 is_zero = _mm512_cmp_ps_mask(value, Floats{}, _CMP_EQ_OQ);
  minus_zeros = reinterpret_cast<Int32s>(
      _mm512_mask_add_epi32(reinterpret_cast<__m512i>(minus_zeros), is_zero,
                            reinterpret_cast<__m512i>(minus_zeros), _mm512_set1_epi32(-1)));
#else
  minus_zeros += value == 0;
#endif
}

BlockSums sum_float32(const float* elements, std::size_t n) {
  Doubles sum[kLanes / kDoubles] = {};
  Doubles square[kLanes / kDoubles] = {};
  Floats max = Floats{} - static_cast<float>(kInfinity);
  Floats min = Floats{} + static_cast<float>(kInfinity);
  Int32s minus_zeros = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kLanes / kFloats; ++part) {
      const auto value = load<Floats>(elements + i + part * kFloats);
      max = greater_of(value, max);
      min = less_of(value, min);
      count_zeros(minus_zeros, value);
    }
#pragma GCC unroll 8
    for (std::size_t part = 0; part < kLanes / kDoubles; ++part) {
      const auto value =
          __builtin_convertvector(load<HalfFloats>(elements + i + part * kDoubles), Doubles);
      sum[part] += value;
      square[part] = plus_square(square[part], value);
    }
  }
  return finish_block<kFloats>(max, min, -minus_zeros, sum, square, elements + i, n - i);
}

BlockSums sum_float64(const double* elements, std::size_t n) {
  Doubles sum[kLanes / kDoubles] = {};
  Doubles square[kLanes / kDoubles] = {};
  Doubles max = Doubles{} - kInfinity;
  Doubles min = Doubles{} + kInfinity;
  Int64s zeros = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (std::size_t part = 0; part < kLanes / kDoubles; ++part) {
      const auto value = load<Doubles>(elements + i + part * kDoubles);
      max = value > max ? value : max;
      min = value < min ? value : min;
      zeros -= value == 0;
      sum[part] += value;
      square[part] += value * value;
    }
  }
  return finish_block<kDoubles>(max, min, zeros, sum, square, elements + i, n - i);
}

// The elements at `from`, as doubles.
inline Doubles load_doubles(const float* from) {
  return __builtin_convertvector(load<HalfFloats>(from), Doubles);
}
inline Doubles load_doubles(const double* from) { return load<Doubles>(from); }

template <class Element>
BlockDeviations deviations(const Element* elements, std::size_t n, double from) {
  Doubles sum[kLanes / kDoubles] = {};
  Doubles square[kLanes / kDoubles] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (std::size_t part = 0; part < kLanes / kDoubles; ++part) {
      const Doubles value = load_doubles(elements + i + part * kDoubles) - from;
      sum[part] += value;
      square[part] += value * value;
    }
  }
  double sums[kLanes];
  double squares[kLanes];
  __builtin_memcpy(sums, sum, sizeof(sums));
  __builtin_memcpy(squares, square, sizeof(squares));
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    const double value = elements[i] - from;
    sums[lane] += value;
    squares[lane] += value * value;
  }
  return {add_lanes(sums), add_lanes(squares)};
}

inline float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Without a branch, so that the compiler makes vectors of it.
inline float float16_value(std::uint16_t half) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 13;
  // The exponent has 5 bits with bias 15 and needs 8 with bias 127. Multiplying, rather than adding
  // to the exponent, makes normal numbers of denormal ones as well.
  const std::uint32_t finite = bits_of_float(float_of_bits(magnitude) * 0x1p112F);
  const std::uint32_t special = magnitude | 0x7F800000U;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  return float_of_bits(sign | ((half & 0x7C00U) == 0x7C00U ? special : finite));
}

void float16_to_float32(const std::uint16_t* from, float* to, std::size_t n) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    // With a mask of all ones: GCC 12 warns about its own header's version without one.
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xFFFF, halves));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4) {
    vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
  }
#endif
  for (; i < n; ++i) to[i] = float16_value(from[i]);
}

void bfloat16_to_float32(const std::uint16_t* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = float_of_bits(static_cast<std::uint32_t>(from[i]) << 16);
  }
}

}  // namespace

const Kernels TRENDPROBE_KERNELS = {TRENDPROBE_KERNELS_NAME, sum_float32,        sum_float64,
                                    deviations<float>,       deviations<double>, float16_to_float32,
                                    bfloat16_to_float32};

}  // namespace trendprobe::simd
// NOLINTEND(misc-definitions-in-headers)
