#include "hook/tensor_stats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "hook/floating_point_state.h"
#include "hook/simd_kernels.h"

namespace trendprobe {
namespace {

constexpr std::int64_t kBlock = simd::kMaxBlock;
// What one call of a ParallelFor's body measures. The boundaries depend on nothing but this.
constexpr std::int64_t kChunk = 8 * kBlock;
// Up to this many elements, waking other threads costs more than they gain.
constexpr std::int64_t kMaxSerial = 12 * kBlock;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The elements in the order of their addresses, dimensions that can be walked as one merged.
struct Layout {
  // Every dimension left has at least two elements, all of which an int64 counts.
  static constexpr std::size_t kMaxDimensions = 64;
  std::size_t dimensions = 0;
  std::array<std::int64_t, kMaxDimensions> sizes;    // innermost first
  std::array<std::int64_t, kMaxDimensions> strides;  // in elements, ascending
  std::int64_t count = 1;
  // How often every element counts, because of dimensions of stride 0.
  std::int64_t repeats = 1;
};

Layout layout_of(const TensorView& tensor) {
  Layout layout;
  std::size_t n = 0;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    const std::int64_t size = tensor.sizes[i];
    const std::int64_t stride = tensor.strides[i];
    if (size == 1) continue;
    if (stride == 0) {
      layout.repeats *= size;
      continue;
    }
    layout.count *= size;
    std::size_t at = n++;
    for (; at > 0 && layout.strides[at - 1] > stride; --at) {
      layout.sizes[at] = layout.sizes[at - 1];
      layout.strides[at] = layout.strides[at - 1];
    }
    layout.sizes[at] = size;
    layout.strides[at] = stride;
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (layout.dimensions > 0) {
      const std::size_t last = layout.dimensions - 1;
      if (layout.sizes[last] * layout.strides[last] == layout.strides[i]) {
        layout.sizes[last] *= layout.sizes[i];
        continue;
      }
    }
    layout.sizes[layout.dimensions] = layout.sizes[i];
    layout.strides[layout.dimensions] = layout.strides[i];
    ++layout.dimensions;
  }
  if (layout.dimensions == 0) {
    layout.sizes[0] = 1;
    layout.strides[0] = 1;
    layout.dimensions = 1;
  }
  return layout;
}

// Hands out elements in the layout's order, a block at a time.
template <class Element>
class BlockReader {
 public:
  BlockReader(const void* data, const Layout& layout, std::int64_t first)
      : data_(static_cast<const Element*>(data)), layout_(layout) {
    for (std::size_t i = 0; i < layout.dimensions; ++i) {
      index_[i] = first % layout.sizes[i];
      first /= layout.sizes[i];
      data_ += index_[i] * layout.strides[i];
    }
  }

  // The next n (at most kBlock) elements: where they are, if they lie side by side, else a copy
  // that lives until the next call.
  const Element* next(std::int64_t n) {
    if (layout_.strides[0] == 1 && layout_.sizes[0] - index_[0] >= n) {
      const Element* block = data_;
      advance(n);
      return block;
    }
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t run = std::min(n - done, layout_.sizes[0] - index_[0]);
      const std::int64_t stride = layout_.strides[0];
      for (std::int64_t i = 0; i < run; ++i) copy_[done + i] = data_[i * stride];
      advance(run);
      done += run;
    }
    return copy_.data();
  }

 private:
  // REQUIRES: n is not beyond the end of the innermost dimension.
  void advance(std::int64_t n) {
    index_[0] += n;
    data_ += n * layout_.strides[0];
    for (std::size_t i = 0; index_[i] == layout_.sizes[i] && i + 1 < layout_.dimensions; ++i) {
      index_[i] = 0;
      data_ += layout_.strides[i + 1] - layout_.sizes[i] * layout_.strides[i];
      ++index_[i + 1];
    }
  }

  const Element* data_;
  const Layout& layout_;
  std::array<std::int64_t, Layout::kMaxDimensions> index_;
  std::array<Element, kBlock> copy_;
};

// Count, mean, and the squares of the differences from it, of some elements. Never computed from a
// sum of squares, where the mean would cancel what is looked for.
struct Spread {
  std::int64_t count = 0;
  double mean = 0;
  double squares = 0;

  // Chan, Golub, LeVeque 1979: two sets of elements as one. REQUIRES: the other is not empty.
  void add(const Spread& other) {
    const std::int64_t total = count + other.count;
    const double difference = other.mean - mean;
    const double share = static_cast<double>(other.count) / static_cast<double>(total);
    mean += difference * share;
    squares += other.squares + difference * difference * share * static_cast<double>(count);
    count = total;
  }
};

struct Sums {
  double sum = 0;
  double sum_of_squares = 0;
  double max = -kInfinity;
  double min = kInfinity;
  std::int64_t nans = 0;
  std::int64_t infs = 0;
  std::int64_t zeros = 0;

  void add(const Sums& other) {
    sum += other.sum;
    sum_of_squares += other.sum_of_squares;
    max = std::max(max, other.max);
    min = std::min(min, other.min);
    nans += other.nans;
    infs += other.infs;
    zeros += other.zeros;
  }
};

Sums sums_of(const simd::BlockSums& block) {
  return {block.sum, block.sum_of_squares, block.max, block.min, 0, 0, block.zeros};
}

template <class Element>
Sums with_nonfinite(Sums sums, const Element* elements, std::int64_t n) {
  // Rare, and the block is still in the cache: counted only where there is something to count.
  if (!std::isfinite(sums.sum_of_squares)) {
    for (std::int64_t i = 0; i < n; ++i) {
      sums.nans += std::isnan(elements[i]) ? 1 : 0;
      sums.infs += std::isinf(elements[i]) ? 1 : 0;
    }
  }
  return sums;
}

Spread spread_of(const simd::BlockDeviations& deviations, double from, std::int64_t n) {
  const auto count = static_cast<double>(n);
  const double error = deviations.sum / count;  // of `from`, which was rounded
  return {n, from + error, deviations.sum_of_squares - deviations.sum * error};
}

template <class Element>
Spread spread_of(const Element* elements, std::int64_t n, double sum) {
  const simd::Kernels& kernels = simd::best_kernels();
  const auto size = static_cast<std::size_t>(n);
  const double mean = sum / static_cast<double>(n);
  if constexpr (std::is_same_v<Element, float>) {
    return spread_of(kernels.deviations_float32(elements, size, mean), mean, n);
  } else {
    return spread_of(kernels.deviations_float64(elements, size, mean), mean, n);
  }
}

Sums sum_block(const float* elements, std::int64_t n, Spread* spread) {
  const auto block = simd::best_kernels().sum_float32(elements, static_cast<std::size_t>(n));
  Sums sums = with_nonfinite(sums_of(block), elements, n);
  if (spread != nullptr) spread->add(spread_of(elements, n, sums.sum));
  return sums;
}

Sums sum_block(const double* elements, std::int64_t n, Spread* spread) {
  const auto block = simd::best_kernels().sum_float64(elements, static_cast<std::size_t>(n));
  Sums sums = with_nonfinite(sums_of(block), elements, n);
  if (spread != nullptr) spread->add(spread_of(elements, n, sums.sum));
  return sums;
}

// Calls sum(elements, n) for every block of a chunk.
template <class Element, class Sum>
void for_blocks(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                std::int64_t end, Sum sum) {
  BlockReader<Element> reader(tensor.data, layout, begin);
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t n = std::min(kBlock, end - at);
    sum(reader.next(n), n);
  }
}

// Sums of a chunk whose elements become doubles first.
template <class Element, class Convert>
Sums sum_converted(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                   std::int64_t end, Spread* spread, Convert convert) {
  Sums sums;
  std::array<double, kBlock> doubles;
  for_blocks<Element>(tensor, layout, begin, end, [&](const Element* elements, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      doubles[static_cast<std::size_t>(i)] = convert(elements[i]);
    }
    sums.add(sum_block(doubles.data(), n, spread));
  });
  return sums;
}

template <class Integer>
Sums sum_integers(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                  std::int64_t end, Spread* spread) {
  return sum_converted<Integer>(tensor, layout, begin, end, spread,
                                [](Integer element) { return static_cast<double>(element); });
}

Sums sum_float32(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                 std::int64_t end, Spread* spread) {
  Sums sums;
  for_blocks<float>(tensor, layout, begin, end, [&](const float* elements, std::int64_t n) {
    sums.add(sum_block(elements, n, spread));
  });
  return sums;
}

Sums sum_16_bit_floats(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                       std::int64_t end, Spread* spread) {
  const simd::Kernels& kernels = simd::best_kernels();
  const auto to_float32 = tensor.type == ElementType::kFloat16 ? kernels.float16_to_float32
                                                               : kernels.bfloat16_to_float32;
  Sums sums;
  std::array<float, kBlock> floats;
  for_blocks<std::uint16_t>(tensor, layout, begin, end,
                            [&](const std::uint16_t* elements, std::int64_t n) {
                              to_float32(elements, floats.data(), static_cast<std::size_t>(n));
                              sums.add(sum_block(floats.data(), n, spread));
                            });
  return sums;
}

struct HalfComplex {
  std::uint16_t real;
  std::uint16_t imaginary;
};

template <class Part>
struct Complex {
  Part real;
  Part imaginary;
};

// hypot() is slow, but where the parts are float32 or less its care is not needed.
double absolute(float real, float imaginary) {
  if (std::isinf(real) || std::isinf(imaginary)) return kInfinity;
  const double x = real;
  const double y = imaginary;
  return std::sqrt(x * x + y * y);
}

Sums sum_complex(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                 std::int64_t end, Spread* spread, double scale) {
  if (tensor.type == ElementType::kComplexFloat64) {
    // Scaled before, so that the absolute value can't overflow.
    return sum_converted<Complex<double>>(
        tensor, layout, begin, end, spread, [scale](Complex<double> element) {
          return std::hypot(element.real * scale, element.imaginary * scale);
        });
  }
  if (tensor.type == ElementType::kComplexFloat32) {
    return sum_converted<Complex<float>>(
        tensor, layout, begin, end, spread,
        [](Complex<float> element) { return absolute(element.real, element.imaginary); });
  }
  const auto to_float32 = simd::best_kernels().float16_to_float32;
  return sum_converted<HalfComplex>(
      tensor, layout, begin, end, spread, [to_float32](HalfComplex element) {
        const std::array<std::uint16_t, 2> halves = {element.real, element.imaginary};
        std::array<float, 2> parts;
        to_float32(halves.data(), parts.data(), parts.size());
        return absolute(parts[0], parts[1]);
      });
}

Sums sum_float64(const TensorView& tensor, const Layout& layout, std::int64_t begin,
                 std::int64_t end, Spread* spread, double scale) {
  if (scale != 1) {
    return sum_converted<double>(tensor, layout, begin, end, spread,
                                 [scale](double element) { return element * scale; });
  }
  Sums sums;
  for_blocks<double>(tensor, layout, begin, end, [&](const double* elements, std::int64_t n) {
    sums.add(sum_block(elements, n, spread));
  });
  return sums;
}

// The values of the 256 elements of a one-byte type.
using ByteValues = std::array<double, 256>;

template <class Value>
ByteValues byte_values(Value value) {
  ByteValues values;
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    values[byte] = value(static_cast<std::uint8_t>(byte));
  }
  return values;
}

// What the bit patterns of an 8-bit floating-point type stand for beside numbers.
enum class Float8Special : std::uint8_t {
  kIeee,         // the highest exponent: infinities and NaN
  kLastIsNaN,    // only all ones is NaN, no infinity ("FN")
  kMinusZeroNaN  // only 0x80 is NaN, no infinity, no -0 ("FNUZ")
};

double float8_value(std::uint8_t byte, int mantissa_bits, int bias, Float8Special special) {
  const int mantissa = byte & ((1 << mantissa_bits) - 1);
  const int exponent = (byte & 0x7F) >> mantissa_bits;
  const double sign = (byte & 0x80) != 0 ? -1 : 1;
  switch (special) {
    case Float8Special::kIeee:
      if (exponent == 0x7F >> mantissa_bits) return mantissa == 0 ? sign * kInfinity : kNaN;
      break;
    case Float8Special::kLastIsNaN:
      if ((byte & 0x7F) == 0x7F) return kNaN;
      break;
    case Float8Special::kMinusZeroNaN:
      if (byte == 0x80) return kNaN;
      break;
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

ByteValues byte_values(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return byte_values([](std::uint8_t byte) { return byte != 0 ? 1.0 : 0.0; });
    case ElementType::kInt8:
      return byte_values([](std::uint8_t byte) { return static_cast<std::int8_t>(byte); });
    case ElementType::kFloat8E4M3FN:
      return byte_values(
          [](std::uint8_t byte) { return float8_value(byte, 3, 7, Float8Special::kLastIsNaN); });
    case ElementType::kFloat8E4M3FNUZ:
      return byte_values(
          [](std::uint8_t byte) { return float8_value(byte, 3, 8, Float8Special::kMinusZeroNaN); });
    case ElementType::kFloat8E5M2:
      return byte_values(
          [](std::uint8_t byte) { return float8_value(byte, 2, 15, Float8Special::kIeee); });
    case ElementType::kFloat8E5M2FNUZ:
      return byte_values([](std::uint8_t byte) {
        return float8_value(byte, 2, 16, Float8Special::kMinusZeroNaN);
      });
    case ElementType::kFloat8E8M0FNU:
      return byte_values(
          [](std::uint8_t byte) { return byte == 0xFF ? kNaN : std::ldexp(1, byte - 127); });
    default:
      return byte_values([](std::uint8_t byte) { return byte; });
  }
}

// One-byte elements are counted by value, and the 256 counts are what is summed.
Sums sum_bytes(const TensorView& tensor, const Layout& layout, std::int64_t begin, std::int64_t end,
               Spread* spread) {
  // Equal bytes in a row would wait for each other's increment in one table.
  constexpr std::size_t kTables = 4;
  std::array<std::array<std::uint32_t, 256>, kTables> counts = {};
  for_blocks<std::uint8_t>(tensor, layout, begin, end,
                           [&](const std::uint8_t* elements, std::int64_t n) {
                             std::int64_t i = 0;
                             for (; i + 4 <= n; i += 4) {
                               ++counts[0][elements[i]];
                               ++counts[1][elements[i + 1]];
                               ++counts[2][elements[i + 2]];
                               ++counts[3][elements[i + 3]];
                             }
                             for (; i < n; ++i) ++counts[0][elements[i]];
                           });
  const ByteValues values = byte_values(tensor.type);
  Sums sums;
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    const std::uint32_t count =
        counts[0][byte] + counts[1][byte] + counts[2][byte] + counts[3][byte];
    if (count == 0) continue;
    const double value = values[byte];
    sums.sum += value * count;
    sums.sum_of_squares += value * value * count;
    if (std::isnan(value)) {
      sums.nans += count;
      continue;
    }
    sums.max = std::max(sums.max, value);
    sums.min = std::min(sums.min, value);
    if (std::isinf(value)) sums.infs += count;
    if (value == 0) sums.zeros += count;
  }
  if (spread != nullptr) {
    const std::int64_t n = end - begin;
    const double mean = sums.sum / static_cast<double>(n);
    simd::BlockDeviations deviations = {0, 0};
    for (std::size_t byte = 0; byte < values.size(); ++byte) {
      const std::uint32_t count =
          counts[0][byte] + counts[1][byte] + counts[2][byte] + counts[3][byte];
      if (count == 0) continue;
      deviations.sum += (values[byte] - mean) * count;
      deviations.sum_of_squares += (values[byte] - mean) * (values[byte] - mean) * count;
    }
    spread->add(spread_of(deviations, mean, n));
  }
  return sums;
}

// What is in a chunk; its spread is added to `spread`, which is null where nobody asks for it.
// `scale` is for 64-bit floating point alone.
Sums sum_chunk(const TensorView& tensor, const Layout& layout, std::int64_t begin, std::int64_t end,
               Spread* spread, double scale) {
  const FloatingPointState standard;
  switch (tensor.type) {
    case ElementType::kBool:
    case ElementType::kInt8:
    case ElementType::kUInt8:
    case ElementType::kFloat8E4M3FN:
    case ElementType::kFloat8E4M3FNUZ:
    case ElementType::kFloat8E5M2:
    case ElementType::kFloat8E5M2FNUZ:
    case ElementType::kFloat8E8M0FNU:
      return sum_bytes(tensor, layout, begin, end, spread);
    case ElementType::kInt16:
      return sum_integers<std::int16_t>(tensor, layout, begin, end, spread);
    case ElementType::kInt32:
      return sum_integers<std::int32_t>(tensor, layout, begin, end, spread);
    case ElementType::kInt64:
      return sum_integers<std::int64_t>(tensor, layout, begin, end, spread);
    case ElementType::kUInt16:
      return sum_integers<std::uint16_t>(tensor, layout, begin, end, spread);
    case ElementType::kUInt32:
      return sum_integers<std::uint32_t>(tensor, layout, begin, end, spread);
    case ElementType::kUInt64:
      return sum_integers<std::uint64_t>(tensor, layout, begin, end, spread);
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return sum_16_bit_floats(tensor, layout, begin, end, spread);
    case ElementType::kFloat32:
      return sum_float32(tensor, layout, begin, end, spread);
    case ElementType::kFloat64:
      return sum_float64(tensor, layout, begin, end, spread, scale);
    case ElementType::kComplexFloat16:
    case ElementType::kComplexFloat32:
    case ElementType::kComplexFloat64:
      return sum_complex(tensor, layout, begin, end, spread, scale);
  }
  return {};
}

Sums sum_all(const TensorView& tensor, const Layout& layout, Spread* spread, double scale,
             const ParallelFor& parallel_for) {
  if (layout.count <= kChunk) return sum_chunk(tensor, layout, 0, layout.count, spread, scale);
  const std::int64_t chunk_count = (layout.count + kChunk - 1) / kChunk;
  const auto size = static_cast<std::size_t>(chunk_count);
  std::vector<Sums> chunks(size);
  std::vector<Spread> spreads(spread == nullptr ? 0 : size);
  const auto body = [&](std::int64_t chunk) {
    const auto index = static_cast<std::size_t>(chunk);
    const std::int64_t begin = chunk * kChunk;
    chunks[index] = sum_chunk(tensor, layout, begin, std::min(begin + kChunk, layout.count),
                              spread == nullptr ? nullptr : &spreads[index], scale);
  };
  if (parallel_for && layout.count > kMaxSerial) {
    parallel_for(chunk_count, body);
  } else {
    for (std::int64_t chunk = 0; chunk < chunk_count; ++chunk) body(chunk);
  }
  const FloatingPointState standard;
  Sums sums;
  for (const Sums& chunk : chunks) sums.add(chunk);
  for (const Spread& chunk : spreads) spread->add(chunk);
  return sums;
}

bool is_64_bit_float(ElementType type) {
  return type == ElementType::kFloat64 || type == ElementType::kComplexFloat64;
}

bool is_rounded_to_float32(ElementType type) {
  return type >= ElementType::kFloat8E4M3FN && !is_64_bit_float(type);
}

double rounded_to_float32(double value) {
  return std::abs(value) > std::numeric_limits<float>::max() ? value : static_cast<float>(value);
}

// What to multiply 64-bit elements with so that their sum and squares stay within range; 1 if they
// do as they are.
double needed_scale(const Sums& sums) {
  if (sums.nans > 0 || sums.infs > 0) return 1;
  if (!std::isfinite(sums.sum_of_squares) || !std::isfinite(sums.sum)) return 0x1p-600;
  // Squares this small have lost bits to the end of the range.
  if (sums.sum_of_squares < 0x1p-900 && (sums.max != 0 || sums.min != 0)) return 0x1p600;
  return 1;
}

}  // namespace

std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kInt16:
    case ElementType::kUInt16:
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kInt32:
    case ElementType::kUInt32:
    case ElementType::kFloat32:
    case ElementType::kComplexFloat16:
      return 4;
    case ElementType::kInt64:
    case ElementType::kUInt64:
    case ElementType::kFloat64:
    case ElementType::kComplexFloat32:
      return 8;
    case ElementType::kComplexFloat64:
      return 16;
    default:
      return 1;
  }
}

std::optional<TensorStatistics> measure(const TensorView& tensor, const ParallelFor& parallel_for,
                                        MeasureAlso also) {
  assert(tensor.sizes.size() == tensor.strides.size());
  if (tensor.data == nullptr || std::ranges::count(tensor.sizes, 0) > 0) return std::nullopt;
  const Layout layout = layout_of(tensor);
  Spread spread;
  Spread* const wanted = also == MeasureAlso::kStandardDeviation ? &spread : nullptr;
  const Sums sums = sum_all(tensor, layout, wanted, 1, parallel_for);

  TensorStatistics statistics;
  statistics.nans = sums.nans * layout.repeats;
  statistics.infs = sums.infs * layout.repeats;
  statistics.zeros = sums.zeros * layout.repeats;
  statistics.count = layout.count * layout.repeats;
  if (sums.nans > 0) {
    statistics.norm = statistics.max = statistics.min = statistics.mean = kNaN;
    return statistics;
  }
  const FloatingPointState standard;
  const double scale = is_64_bit_float(tensor.type) ? needed_scale(sums) : 1;
  Sums scaled = sums;
  if (scale != 1) {
    spread = {};
    scaled = sum_all(tensor, layout, wanted, scale, parallel_for);
  }
  const auto repeats = static_cast<double>(layout.repeats);
  // Two roots: the product could be beyond the range.
  statistics.norm = std::sqrt(scaled.sum_of_squares) * std::sqrt(repeats) / scale;
  statistics.mean = scaled.sum / static_cast<double>(layout.count) / scale;
  if (wanted != nullptr && sums.infs == 0) {
    // 0 / 0 where there is one element.
    statistics.std = std::sqrt(spread.squares) *
                     std::sqrt(repeats / static_cast<double>(statistics.count - 1)) / scale;
  }
  // Adding 0 makes 0 of -0: which of the two comes first must not matter.
  statistics.max = sums.max + 0.0;
  statistics.min = sums.min + 0.0;
  if (is_rounded_to_float32(tensor.type)) {
    statistics.norm = rounded_to_float32(statistics.norm);
    statistics.mean = rounded_to_float32(statistics.mean);
    statistics.std = rounded_to_float32(statistics.std);
    // Exact already, but for the absolute values of complex numbers.
    statistics.max = rounded_to_float32(statistics.max);
    statistics.min = rounded_to_float32(statistics.min);
  }
  return statistics;
}

}  // namespace trendprobe
