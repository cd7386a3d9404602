// The statistics kernel against brute force in long double, and every instruction set against the
// baseline, bit for bit.
#include "hook/tensor_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "hook/simd_kernels.h"

namespace trendprobe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<const simd::Kernels*> kernels_of_this_processor() {
  std::vector<const simd::Kernels*> kernels = {&simd::kBaselineKernels};
#ifdef TRENDPROBE_X86_64_KERNELS
  const std::string best = simd::best_kernels().name;
  if (best == "avx512" || best == "avx2") kernels.push_back(&simd::kAvx2Kernels);
  if (best == "avx512") kernels.push_back(&simd::kAvx512Kernels);
#endif
  return kernels;
}

// All NaN are one.
std::uint64_t bits(double value) {
  return std::bit_cast<std::uint64_t>(std::isnan(value) ? kNaN : value);
}

std::vector<std::uint64_t> bits(const TensorStatistics& statistics) {
  return {bits(statistics.norm),
          bits(statistics.max),
          bits(statistics.min),
          bits(statistics.mean),
          static_cast<std::uint64_t>(statistics.nans),
          static_cast<std::uint64_t>(statistics.infs),
          static_cast<std::uint64_t>(statistics.zeros),
          static_cast<std::uint64_t>(statistics.count)};
}

// Magnitudes over the whole range of the type, zeros of both signs, some denormals.
template <class Float>
std::vector<Float> random_floats(std::size_t n, unsigned seed) {
  using Limits = std::numeric_limits<Float>;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<Float> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(Limits::min_exponent - 20, Limits::max_exponent - 2);
  std::vector<Float> floats(n);
  for (Float& value : floats) {
    const auto kind = random() % 8;
    value = kind == 0 ? Float{0} : kind == 1 ? -Float{0} : mantissa(random);
    if (kind < 4) value = std::ldexp(value, exponent(random));
  }
  return floats;
}

template <class Element>
TensorView view_of(const std::vector<Element>& elements, ElementType type,
                   const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) {
  return {.data = elements.data(), .type = type, .sizes = sizes, .strides = strides};
}

template <class Element>
TensorStatistics measure_all(const std::vector<Element>& elements, ElementType type,
                             const ParallelFor& parallel_for = {}) {
  const std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(elements.size())};
  const std::vector<std::int64_t> strides = {1};
  return measure(view_of(elements, type, sizes, strides), parallel_for).value();
}

struct Expected {
  long double sum = 0;
  long double sum_of_squares = 0;
  double max = -kInfinity;
  double min = kInfinity;
  std::int64_t nans = 0;
  std::int64_t infs = 0;
  std::int64_t zeros = 0;
  std::int64_t count = 0;

  void add(double value) {
    sum += value;
    sum_of_squares += static_cast<long double>(value) * static_cast<long double>(value);
    max = std::fmax(max, value);
    min = std::fmin(min, value);
    nans += std::isnan(value) ? 1 : 0;
    infs += std::isinf(value) ? 1 : 0;
    zeros += value == 0 ? 1 : 0;
    ++count;
  }
};

void expect_near(double value, long double expected, double tolerance) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(value)) << value;
  } else if (std::isinf(expected)) {
    EXPECT_EQ(value, static_cast<double>(expected));
  } else {
    EXPECT_NEAR(value, static_cast<double>(expected), tolerance);
  }
}

void expect_statistics(const TensorStatistics& statistics, const Expected& expected,
                       double epsilon) {
  const auto count = static_cast<long double>(expected.count);
  const long double norm = std::sqrt(expected.sum_of_squares);
  expect_near(statistics.norm, norm, epsilon * static_cast<double>(norm));
  // The rounding of a mean is as large as what was added up, not as the mean.
  const double tolerance = epsilon * static_cast<double>(norm / std::sqrt(count));
  expect_near(statistics.mean, expected.sum / count, tolerance);
  if (expected.nans > 0) {
    EXPECT_TRUE(std::isnan(statistics.max)) << statistics.max;
    EXPECT_TRUE(std::isnan(statistics.min)) << statistics.min;
  } else {
    EXPECT_EQ(statistics.max, expected.max);
    EXPECT_EQ(statistics.min, expected.min);
  }
  EXPECT_EQ(statistics.nans, expected.nans);
  EXPECT_EQ(statistics.infs, expected.infs);
  EXPECT_EQ(statistics.zeros, expected.zeros);
  EXPECT_EQ(statistics.count, expected.count);
}

constexpr double kFloat32Epsilon = std::numeric_limits<float>::epsilon();
constexpr double kFloat64Epsilon = 8 * std::numeric_limits<double>::epsilon();

// ---- Instruction sets -------------------------------------------------------------------------

template <class Element>
void expect_equal_blocks(simd::BlockSums (*simd::Kernels::*sum)(const Element*, std::size_t)) {
  for (std::size_t n = 1; n <= simd::kMaxBlock; n += n < 100 ? 1 : 333) {
    // Not aligned to a vector.
    std::vector<Element> elements = random_floats<Element>(n + 1, static_cast<unsigned>(n));
    if (n % 5 == 0) elements[n / 2 + 1] = std::numeric_limits<Element>::infinity();
    const simd::BlockSums baseline = (simd::kBaselineKernels.*sum)(elements.data() + 1, n);
    for (const simd::Kernels* kernels : kernels_of_this_processor()) {
      SCOPED_TRACE(std::string(kernels->name) + ", " + std::to_string(n) + " elements");
      const simd::BlockSums block = (kernels->*sum)(elements.data() + 1, n);
      EXPECT_EQ(bits(block.sum), bits(baseline.sum));
      EXPECT_EQ(bits(block.sum_of_squares), bits(baseline.sum_of_squares));
      EXPECT_EQ(block.max, baseline.max);
      EXPECT_EQ(block.min, baseline.min);
      EXPECT_EQ(block.zeros, baseline.zeros);
    }
  }
}

TEST(SimdKernels, EveryInstructionSetSumsFloat32ToTheSameBits) {
  expect_equal_blocks(&simd::Kernels::sum_float32);
}

TEST(SimdKernels, EveryInstructionSetSumsFloat64ToTheSameBits) {
  expect_equal_blocks(&simd::Kernels::sum_float64);
}

template <class Element>
void expect_equal_deviations(simd::BlockDeviations (*simd::Kernels::*deviations)(const Element*,
                                                                                 std::size_t,
                                                                                 double)) {
  for (std::size_t n = 1; n <= simd::kMaxBlock; n += n < 100 ? 1 : 333) {
    const std::vector<Element> elements =
        random_floats<Element>(n + 1, static_cast<unsigned>(n));  // not aligned to a vector
    const double from = elements[n / 3] * 0.7;
    const auto baseline = (simd::kBaselineKernels.*deviations)(elements.data() + 1, n, from);
    for (const simd::Kernels* kernels : kernels_of_this_processor()) {
      SCOPED_TRACE(std::string(kernels->name) + ", " + std::to_string(n) + " elements");
      const auto block = (kernels->*deviations)(elements.data() + 1, n, from);
      EXPECT_EQ(bits(block.sum), bits(baseline.sum));
      EXPECT_EQ(bits(block.sum_of_squares), bits(baseline.sum_of_squares));
    }
  }
}

TEST(SimdKernels, EveryInstructionSetSumsDeviationsToTheSameBits) {
  expect_equal_deviations(&simd::Kernels::deviations_float32);
  expect_equal_deviations(&simd::Kernels::deviations_float64);
}

double value_of_float16(unsigned half) {
  const unsigned exponent = (half >> 10) & 0x1F;
  const int mantissa = static_cast<int>(half & 0x3FF);
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1F) return mantissa == 0 ? sign * kInfinity : kNaN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
}

TEST(SimdKernels, EveryInstructionSetConvertsEveryFloat16) {
  std::vector<std::uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  for (const simd::Kernels* kernels : kernels_of_this_processor()) {
    // One call for all, and one for each: the latter is the code for the rest of a block.
    std::vector<float> together(halves.size());
    kernels->float16_to_float32(halves.data(), together.data(), halves.size());
    for (unsigned half = 0; half < halves.size(); ++half) {
      float alone = 0;
      kernels->float16_to_float32(&halves[half], &alone, 1);
      const std::uint64_t expected = bits(value_of_float16(half));
      ASSERT_EQ(bits(together[half]), expected) << kernels->name << " " << half;
      ASSERT_EQ(bits(alone), expected) << kernels->name << " " << half;
    }
  }
}

TEST(SimdKernels, EveryInstructionSetConvertsEveryBfloat16) {
  std::vector<std::uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  for (const simd::Kernels* kernels : kernels_of_this_processor()) {
    std::vector<float> floats(halves.size());
    kernels->bfloat16_to_float32(halves.data(), floats.data(), halves.size());
    for (std::uint32_t half = 0; half < halves.size(); ++half) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[half]), half << 16) << kernels->name;
    }
  }
}

// ---- Elements ---------------------------------------------------------------------------------

template <class Float>
void expect_special_found(ElementType type, double epsilon) {
  using Limits = std::numeric_limits<Float>;
  const std::array<Float, 4> specials = {Limits::quiet_NaN(), Limits::infinity(),
                                         -Limits::infinity(), Float{0}};
  for (const std::size_t n : {1, 2, 15, 16, 17, 31, 33, 64, 70, 4096, 4099}) {
    std::vector<Float> elements(n);
    for (std::size_t i = 0; i < n; ++i) elements[i] = static_cast<Float>(1 + i % 7);
    for (std::size_t at = 0; at < n; at += at < 70 ? 1 : 1009) {
      for (const Float special : specials) {
        SCOPED_TRACE(std::to_string(special) + " at " + std::to_string(at) + " of " +
                     std::to_string(n));
        const Float before = std::exchange(elements[at], special);
        Expected expected;
        for (const Float element : elements) expected.add(element);
        expect_statistics(measure_all(elements, type), expected, epsilon);
        elements[at] = before;
      }
    }
  }
}

TEST(TensorStatistics, FindsWhatIsNotFiniteOrZeroAtEveryPlace) {
  expect_special_found<float>(ElementType::kFloat32, kFloat32Epsilon);
  expect_special_found<double>(ElementType::kFloat64, kFloat64Epsilon);
}

TEST(TensorStatistics, BothInfinitiesHaveNoMean) {
  const auto statistics = measure_all<float>(
      {1, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()},
      ElementType::kFloat32);
  EXPECT_EQ(statistics.norm, kInfinity);
  EXPECT_EQ(statistics.max, kInfinity);
  EXPECT_EQ(statistics.min, -kInfinity);
  EXPECT_TRUE(std::isnan(statistics.mean));
  EXPECT_EQ(statistics.infs, 2);
  EXPECT_EQ(statistics.nans, 0);
}

TEST(TensorStatistics, OnlyNaN) {
  const auto statistics =
      measure_all<float>(std::vector<float>(40, std::nanf("")), ElementType::kFloat32);
  EXPECT_TRUE(std::isnan(statistics.norm));
  EXPECT_TRUE(std::isnan(statistics.max));
  EXPECT_TRUE(std::isnan(statistics.min));
  EXPECT_TRUE(std::isnan(statistics.mean));
  EXPECT_EQ(statistics.nans, 40);
}

TEST(TensorStatistics, ZeroHasNoSign) {
  const auto statistics = measure_all<float>({-0.0F, 0.0F, -0.0F}, ElementType::kFloat32);
  EXPECT_EQ(bits(statistics.max), bits(0.0));
  EXPECT_EQ(bits(statistics.min), bits(0.0));
  EXPECT_EQ(statistics.zeros, 3);
}

TEST(TensorStatistics, WholeRangeOfFloat32) {
  for (const std::size_t n : {7, 1000, 5000, 300000}) {
    const auto elements = random_floats<float>(n, static_cast<unsigned>(n));
    Expected expected;
    for (const float element : elements) expected.add(element);
    expect_statistics(measure_all(elements, ElementType::kFloat32), expected, kFloat32Epsilon);
  }
}

TEST(TensorStatistics, RoundsTheNormOfFloat32Once) {
  const auto elements = random_floats<float>(3000, 1);
  long double sum_of_squares = 0;
  for (const float element : elements) {
    sum_of_squares += static_cast<long double>(element) * static_cast<long double>(element);
  }
  EXPECT_EQ(measure_all(elements, ElementType::kFloat32).norm,
            static_cast<float>(std::sqrt(static_cast<double>(sum_of_squares))));
}

TEST(TensorStatistics, ANormBeyondFloat32IsNoInfinity) {
  const std::vector<float> elements(100, std::numeric_limits<float>::max());
  const auto statistics = measure_all(elements, ElementType::kFloat32);
  EXPECT_NEAR(statistics.norm / std::numeric_limits<float>::max(), 10, 1e-6);
  EXPECT_EQ(statistics.mean, std::numeric_limits<float>::max());
  EXPECT_EQ(statistics.infs, 0);
}

TEST(TensorStatistics, SquaresAndSumsBeyondFloat64) {
  for (const double magnitude : {std::numeric_limits<double>::max(), 1e200, 1e-200, 1e-310}) {
    const std::vector<double> elements(16, magnitude);
    const auto statistics = measure_all(elements, ElementType::kFloat64);
    EXPECT_NEAR(statistics.mean / magnitude, 1, 1e-12) << magnitude;
    EXPECT_EQ(statistics.infs, 0);
    if (magnitude < 1e308) {
      EXPECT_NEAR(statistics.norm / magnitude, 4, 1e-12) << magnitude;
    }
  }
}

TEST(TensorStatistics, RepeatedSquaresBeyondFloat64) {
  const std::vector<double> elements = {1e153};
  const std::vector<std::int64_t> sizes = {100, 100};
  const std::vector<std::int64_t> strides = {0, 0};
  const auto statistics = measure(view_of(elements, ElementType::kFloat64, sizes, strides));
  EXPECT_NEAR(statistics->norm / 1e155, 1, 1e-12);
  EXPECT_EQ(statistics->count, 10000);
}

template <class Integer>
void expect_integers(ElementType type) {
  std::mt19937_64 random(7);
  for (const std::size_t n : {1, 17, 5000}) {
    std::vector<Integer> elements(n);
    Expected expected;
    for (Integer& element : elements) {
      // The upper bits, so that the values use the whole range; every eighth is 0.
      element = random() % 8 == 0 ? Integer{0}
                                  : static_cast<Integer>(random() >> (64 - 8 * sizeof(Integer)));
      expected.add(static_cast<double>(element));
    }
    expect_statistics(measure_all(elements, type), expected, kFloat64Epsilon);
  }
}

TEST(TensorStatistics, IntegersOfEverySize) {
  expect_integers<std::int8_t>(ElementType::kInt8);
  expect_integers<std::int16_t>(ElementType::kInt16);
  expect_integers<std::int32_t>(ElementType::kInt32);
  expect_integers<std::int64_t>(ElementType::kInt64);
  expect_integers<std::uint8_t>(ElementType::kUInt8);
  expect_integers<std::uint16_t>(ElementType::kUInt16);
  expect_integers<std::uint32_t>(ElementType::kUInt32);
  expect_integers<std::uint64_t>(ElementType::kUInt64);
}

TEST(TensorStatistics, AnyByteButZeroIsTrue) {
  const auto statistics = measure_all<std::uint8_t>({0, 1, 1, 0, 1, 255, 0, 0}, ElementType::kBool);
  EXPECT_EQ(statistics.max, 1);
  EXPECT_EQ(statistics.min, 0);
  EXPECT_EQ(statistics.mean, 0.5);
  EXPECT_EQ(statistics.norm, 2);
  EXPECT_EQ(statistics.zeros, 4);
}

TEST(TensorStatistics, ComplexNumbersByAbsoluteValue) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto statistics = measure_all<std::array<float, 2>>({{3, 4}, {0, 0}, {-5, 12}, {0, -1}},
                                                            ElementType::kComplexFloat32);
  EXPECT_EQ(statistics.max, 13);
  EXPECT_EQ(statistics.min, 0);
  EXPECT_EQ(statistics.mean, 4.75);
  EXPECT_EQ(statistics.norm, static_cast<float>(std::sqrt(25.0 + 169 + 1)));
  EXPECT_EQ(statistics.zeros, 1);
  // As hypot(): an infinite part makes it infinite, whatever the other is.
  const auto infinite = measure_all<std::array<float, 2>>(
      {{std::nanf(""), infinity}, {infinity, 1}}, ElementType::kComplexFloat32);
  EXPECT_EQ(infinite.infs, 2);
  EXPECT_EQ(infinite.nans, 0);
  EXPECT_EQ(infinite.max, kInfinity);
  const auto large =
      measure_all<std::array<double, 2>>({{3e300, 4e300}}, ElementType::kComplexFloat64);
  EXPECT_NEAR(large.norm / 5e300, 1, 1e-12);
  EXPECT_EQ(large.infs, 0);
}

// ---- Layouts ----------------------------------------------------------------------------------

TEST(TensorStatistics, AnyStridesGiveTheElementsTheyName) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::int64_t> sizes(random() % 6);
    std::vector<std::int64_t> strides(sizes.size());
    std::int64_t last = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = 1 + static_cast<std::int64_t>(random() % (round % 10 == 0 ? 17 : 7));
      strides[i] = static_cast<std::int64_t>(random() % (i == 0 ? 3 : 40));
      last += (sizes[i] - 1) * strides[i];
    }
    const auto elements =
        random_floats<double>(static_cast<std::size_t>(last) + 1, static_cast<unsigned>(round));
    std::vector<double> ordinary(elements.size());
    std::ranges::transform(elements, ordinary.begin(), [](double x) { return std::atan(x); });
    Expected expected;
    std::vector<std::int64_t> index(sizes.size(), 0);
    for (bool is_done = false; !is_done;) {
      const std::int64_t at =
          std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t{0});
      expected.add(ordinary[static_cast<std::size_t>(at)]);
      is_done = true;
      for (std::size_t i = 0; i < index.size() && is_done; ++i) {
        index[i] = (index[i] + 1) % sizes[i];
        is_done = index[i] == 0;
      }
    }
    SCOPED_TRACE(testing::PrintToString(sizes) + " " + testing::PrintToString(strides));
    expect_statistics(*measure(view_of(ordinary, ElementType::kFloat64, sizes, strides)), expected,
                      1e-12);
  }
}

TEST(TensorStatistics, RowsOfAWiderMatrix) {
  constexpr std::int64_t kRows = 700;
  constexpr std::int64_t kWidth = 1000;
  const auto matrix = random_floats<float>(kRows * kWidth, 3);
  for (const std::int64_t columns : {1, 3, 900, 1000}) {
    std::vector<float> part;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto begin = matrix.begin() + row * kWidth;
      part.insert(part.end(), begin, begin + columns);
    }
    const std::vector<std::int64_t> sizes = {kRows, columns};
    const std::vector<std::int64_t> strides = {kWidth, 1};
    const auto statistics = measure(view_of(matrix, ElementType::kFloat32, sizes, strides));
    // The same elements in the same order are the same bits, wherever they lie.
    EXPECT_EQ(bits(*statistics), bits(measure_all(part, ElementType::kFloat32))) << columns;
    const std::vector<std::int64_t> transposed_sizes = {columns, kRows};
    const std::vector<std::int64_t> transposed_strides = {1, kWidth};
    EXPECT_EQ(bits(*measure(
                  view_of(matrix, ElementType::kFloat32, transposed_sizes, transposed_strides))),
              bits(*statistics));
  }
}

TEST(TensorStatistics, NothingToMeasure) {
  const std::vector<float> elements = {1, 2, 3};
  const std::vector<std::int64_t> strides = {3, 1};
  const std::vector<std::int64_t> empty = {0, 3};
  const std::vector<std::int64_t> sizes = {1, 3};
  EXPECT_FALSE(measure(view_of(elements, ElementType::kFloat32, empty, strides)).has_value());
  TensorView null = view_of(elements, ElementType::kFloat32, sizes, strides);
  EXPECT_TRUE(measure(null).has_value());
  null.data = nullptr;
  EXPECT_FALSE(measure(null).has_value());
}

TEST(TensorStatistics, ATensorWithoutDimensionsHasOneElement) {
  const std::vector<float> elements = {-3};
  const auto statistics = measure(view_of(elements, ElementType::kFloat32, {}, {}));
  ASSERT_TRUE(statistics.has_value());
  EXPECT_EQ(statistics->norm, 3);
  EXPECT_EQ(statistics->mean, -3);
  EXPECT_EQ(statistics->count, 1);
}

// ---- Threads and processor state --------------------------------------------------------------

TEST(TensorStatistics, AnyOrderOfTheChunksGivesTheSameBits) {
  const ParallelFor backwards = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    while (n > 0) body(--n);
  };
  const ParallelFor threads = [](std::int64_t n, const std::function<void(std::int64_t)>& body) {
    std::vector<std::jthread> pool;
    for (std::int64_t i = 0; i < n; ++i) pool.emplace_back([&body, i] { body(i); });
  };
  const auto floats = random_floats<float>(1'000'003, 5);
  const auto doubles = random_floats<double>(1'000'003, 5);
  const auto serial = bits(measure_all(floats, ElementType::kFloat32));
  EXPECT_EQ(bits(measure_all(floats, ElementType::kFloat32, backwards)), serial);
  EXPECT_EQ(bits(measure_all(floats, ElementType::kFloat32, threads)), serial);
  EXPECT_EQ(bits(measure_all(doubles, ElementType::kFloat64, threads)),
            bits(measure_all(doubles, ElementType::kFloat64)));
}

#ifdef __x86_64__
TEST(TensorStatistics, DenormalsCountEvenWhereTheProgramFlushesThem) {
  const std::vector<float> elements(20, 1e-40F);
  const std::vector<std::uint16_t> halves(20, 1);
  const auto expected = bits(measure_all(elements, ElementType::kFloat32));
  const auto expected_halves = bits(measure_all(halves, ElementType::kFloat16));
  const unsigned before = _mm_getcsr();
  const unsigned flushing = before | 0x8040U;
  _mm_setcsr(flushing);
  const auto found = bits(measure_all(elements, ElementType::kFloat32));
  const auto found_halves = bits(measure_all(halves, ElementType::kFloat16));
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(found_halves, expected_halves);
  EXPECT_EQ(after, flushing);
}
#endif

}  // namespace
}  // namespace trendprobe
