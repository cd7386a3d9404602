// Unsigned integers as SQLite's file format has them: most significant byte first.
#pragma once

#include <concepts>
#include <cstddef>

namespace trendprobe {

template <std::unsigned_integral Integer>
void store_big_endian(std::byte* to, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    to[i] = static_cast<std::byte>(value >> (8 * (sizeof(Integer) - 1 - i)) & 0xFF);
  }
}

template <std::unsigned_integral Integer>
Integer load_big_endian(const std::byte* from) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value = static_cast<Integer>(value << 8 | std::to_integer<Integer>(from[i]));
  }
  return value;
}

}  // namespace trendprobe
