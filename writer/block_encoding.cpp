#include "writer/block_encoding.h"

#include <bit>
#include <cstring>

#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

static_assert(std::endian::native == std::endian::little,
              "both file formats are little-endian, and are written with memcpy");

}  // namespace

void encode_values(std::span<const double> values, std::vector<std::byte>& out) {
  if (fits_float32(values)) {
    out.resize(values.size() * sizeof(float));
    std::byte* next = out.data();
    for (const double value : values) {
      const float narrow = to_float32(canonical(value));
      std::memcpy(next, &narrow, sizeof(narrow));
      next += sizeof(narrow);
    }
    return;
  }
  out.resize(values.size() * sizeof(double));
  std::byte* next = out.data();
  for (const double value : values) {
    const double wide = canonical(value);
    std::memcpy(next, &wide, sizeof(wide));
    next += sizeof(wide);
  }
}

bool decode_values(std::span<const std::byte> bytes, std::size_t count, std::vector<double>& out) {
  if (bytes.size() == count * sizeof(float)) {
    out.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      float narrow = 0;
      std::memcpy(&narrow, bytes.data() + i * sizeof(narrow), sizeof(narrow));
      out[i] = from_float32(narrow);
    }
    return true;
  }
  if (bytes.size() != count * sizeof(double)) return false;
  out.resize(count);
  if (count != 0) std::memcpy(out.data(), bytes.data(), bytes.size());
  return true;
}

void encode_target_ids(std::span<const std::uint32_t> ids, std::vector<std::byte>& out) {
  out.resize(ids.size_bytes());
  if (!ids.empty()) std::memcpy(out.data(), ids.data(), ids.size_bytes());
}

bool decode_target_ids(std::span<const std::byte> bytes, std::vector<std::uint32_t>& out) {
  if (bytes.size() % sizeof(std::uint32_t) != 0) return false;
  out.resize(bytes.size() / sizeof(std::uint32_t));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return true;
}

}  // namespace trendprobe
