// Looks at eight bytes of a text at once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace trendprobe {

/// Eight times the same byte.
constexpr std::uint64_t repeated(char byte) {
  return 0x0101010101010101ULL * static_cast<unsigned char>(byte);
}

/// The high bit of each byte that is zero.
constexpr std::uint64_t zero_bytes(std::uint64_t word) {
  constexpr std::uint64_t kLow = repeated(0x7F);
  return ~(((word & kLow) + kLow) | word | kLow);
}

/// The next eight bytes of a text.
inline std::uint64_t load_word(const char* text) {
  std::uint64_t word = 0;
  std::memcpy(&word, text, sizeof(word));
  return word;
}

/// How many bytes of the text come before the first that has a bit set. REQUIRES: `bits` is not 0.
inline std::size_t bytes_before(std::uint64_t bits) {
  return static_cast<std::size_t>(std::endian::native == std::endian::little
                                      ? std::countr_zero(bits)
                                      : std::countl_zero(bits)) /
         8;
}

}  // namespace trendprobe
