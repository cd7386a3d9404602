// Values and target lists as the blobs of both formats hold them: docs/format.md, "Values".
// Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trendprobe {

/// Encodes values as float32, or as float64 if one of them needs it (fits_float32). Replaces `out`.
/// Values need not be canonical.
void encode_values(std::span<const double> values, std::vector<std::byte>& out);

/// Decodes `count` values; which width follows from the length. Replaces `out`. False if the length
/// is neither.
[[nodiscard]] bool decode_values(std::span<const std::byte> bytes, std::size_t count,
                                 std::vector<double>& out);

/// Encodes indices as uint32. Replaces `out`.
void encode_target_ids(std::span<const std::uint32_t> ids, std::vector<std::byte>& out);

/// False if the length is no multiple of 4.
[[nodiscard]] bool decode_target_ids(std::span<const std::byte> bytes,
                                     std::vector<std::uint32_t>& out);

}  // namespace trendprobe
