// How one statistic's value is held in shards and tiles: docs/format.md, "Values".
//
// "Missing" (not measured, not collected) is a quiet NaN with a payload that survives conversion
// between float and double, so NaN, missing, +inf and -inf all fit in the number itself. Always ask
// is_missing(); never compare values.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace trendprobe {

inline constexpr std::uint32_t kMissingFloat32Bits = 0x7FC04D56;
inline constexpr std::uint64_t kMissingFloat64Bits = 0x7FF809AAC0000000;
inline constexpr double kMissing = std::bit_cast<double>(kMissingFloat64Bits);

/// True for the missing value only; false for every other NaN.
inline bool is_missing(double value) {
  return std::bit_cast<std::uint64_t>(value) == kMissingFloat64Bits;
}

/// The value with every NaN but the missing value replaced by the plain one, as both formats
/// require.
inline double canonical(double value) {
  return std::isnan(value) && !is_missing(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

/// Narrows a canonical value; the missing value stays missing.
inline float to_float32(double value) {
  return is_missing(value) ? std::bit_cast<float>(kMissingFloat32Bits) : static_cast<float>(value);
}

/// Widens a stored float32; the missing value stays missing.
inline double from_float32(float value) {
  return std::bit_cast<std::uint32_t>(value) == kMissingFloat32Bits ? kMissing
                                                                    : static_cast<double>(value);
}

/// True if float32 holds the value with no more loss than its own rounding (docs/format.md,
/// "Values").
inline bool fits_float32(double value) {
  if (!std::isfinite(value)) return true;
  const double magnitude = std::fabs(value);
  if (magnitude > static_cast<double>(std::numeric_limits<float>::max())) return false;
  const bool exact = static_cast<double>(static_cast<float>(value)) == value;
  if (magnitude < static_cast<double>(std::numeric_limits<float>::min())) return exact;
  return exact || magnitude < 16777216.0 || std::nearbyint(value) != value;
}

/// True if every value fits_float32: the block or tile is then written as float32.
inline bool fits_float32(std::span<const double> values) {
  for (const double value : values) {
    if (!fits_float32(value)) return false;
  }
  return true;
}

}  // namespace trendprobe
