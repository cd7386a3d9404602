#include "hook/near_zeros.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "hook/torch_parallel_for.h"

// One function for each instruction set, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define TRENDPROBE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRENDPROBE_VECTORISED
#endif

namespace trendprobe {
namespace {

// Below this, waking other threads costs more than they gain.
constexpr std::int64_t kMaxSerial = std::int64_t{1} << 17;
constexpr std::int64_t kChunk = std::int64_t{1} << 16;

// Magnitudes are ordered as their bits are, NaN being greater than all: so integers are compared,
// which also keeps denormals whatever the surrounding program has chosen.
TRENDPROBE_VECTORISED
std::int64_t count_below(const std::uint32_t* bits, std::int64_t n, std::uint32_t limit) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    count +=
        static_cast<std::int32_t>(bits[i] & 0x7FFFFFFFU) < static_cast<std::int32_t>(limit) ? 1 : 0;
  }
  return count;
}

TRENDPROBE_VECTORISED
std::int64_t count_below(const std::uint16_t* bits, std::int64_t n, std::uint16_t limit) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    count +=
        static_cast<std::int16_t>(bits[i] & 0x7FFFU) < static_cast<std::int16_t>(limit) ? 1 : 0;
  }
  return count;
}

TRENDPROBE_VECTORISED
std::int64_t count_below(const std::uint64_t* bits, std::int64_t n, std::uint64_t limit) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    count +=
        static_cast<std::int64_t>(bits[i] & 0x7FFFFFFFFFFFFFFFU) < static_cast<std::int64_t>(limit)
            ? 1
            : 0;
  }
  return count;
}

template <class Bits, class Element>
Bits bits_of(Element element) {
  static_assert(sizeof(Bits) == sizeof(Element));
  Bits bits;
  __builtin_memcpy(&bits, &element, sizeof(bits));
  return bits;
}

template <class Bits>
std::int64_t count_all(const void* data, std::int64_t n, Bits limit) {
  const auto* bits = static_cast<const Bits*>(data);
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  std::atomic<std::int64_t> count = 0;
  const auto body = [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * kChunk;
    count.fetch_add(count_below(bits + begin, std::min(kChunk, n - begin), limit),
                    std::memory_order_relaxed);
  };
  if (n > kMaxSerial && torch_parallel_for()) {
    torch_parallel_for()(chunks, body);
  } else {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) body(chunk);
  }
  return count.load(std::memory_order_relaxed);
}

}  // namespace

std::optional<std::int64_t> count_near_zeros(const at::Tensor& measurable, double limit) {
  if (!(limit > 0)) {
    if (limit <= 0) return 0;
    return std::nullopt;
  }
  if (!measurable.is_non_overlapping_and_dense()) return std::nullopt;
  const void* data = measurable.const_data_ptr();
  const std::int64_t n = measurable.numel();
  const auto narrow = static_cast<float>(limit);
  switch (measurable.scalar_type()) {
    case at::kFloat:
      return count_all(data, n, bits_of<std::uint32_t>(narrow));
    case at::kDouble:
      return count_all(data, n, bits_of<std::uint64_t>(limit));
    case at::kHalf:
      return count_all(data, n, c10::Half(narrow).x);
    case at::kBFloat16:
      return count_all(data, n, c10::BFloat16(narrow).x);
    default:
      return std::nullopt;
  }
}

}  // namespace trendprobe
