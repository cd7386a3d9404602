#include "writer/row_record.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "writer/big_endian.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

constexpr std::size_t kKeyColumns = 4;
constexpr std::size_t kNumberSize = 8;  // of the longest number

// SQLite's serial types.
constexpr std::byte kNull{0};
constexpr std::byte kReal{7};
constexpr std::byte kZero{8};
constexpr std::byte kOne{9};

/// Writes columns one by one: their types to the header, their bytes to the body.
class RecordWriter {
 public:
  RecordWriter(std::byte* header, std::byte* body) : header_(header), body_(body) {}

  void integer(std::int64_t value) {
    if (value == 0 || value == 1) {
      *header_++ = value == 0 ? kZero : kOne;
      return;
    }
    // Bits, with that of the sign.
    const int width = 65 - std::countl_zero(static_cast<std::uint64_t>(value < 0 ? ~value : value));
    const std::size_t bytes = width <= 32   ? static_cast<std::size_t>(width + 7) / 8
                              : width <= 48 ? 6
                                            : 8;
    *header_++ = static_cast<std::byte>(bytes <= 4 ? bytes : bytes == 6 ? 5 : 6);
    // The bytes beyond are those of the columns to come.
    store_big_endian(body_, static_cast<std::uint64_t>(value) << (64 - 8 * bytes));
    body_ += bytes;
  }

  void real(double value) {
    if (std::isnan(value)) {
      *header_++ = kNull;
      return;
    }
    value = std::isinf(value) ? std::copysign(kRowLimit + 1, value)
                              : std::clamp(value, -kRowLimit, kRowLimit);
    // As SQLite does in a REAL column: a whole number takes less room.
    const auto whole = static_cast<std::int64_t>(value);
    if (static_cast<double>(whole) == value) {
      integer(whole);
      return;
    }
    *header_++ = kReal;
    store_big_endian(body_, std::bit_cast<std::uint64_t>(value));
    body_ += kNumberSize;
  }

  const std::byte* end() const { return body_; }

 private:
  std::byte* header_;
  std::byte* body_;
};

}  // namespace

void encode_row(const RowKey& key, std::span<const double> values, std::vector<std::byte>& record) {
  const std::size_t columns = kKeyColumns + values.size();
  // The header begins with its own size, a variable-length integer.
  const bool is_short = columns + 1 < 0x80;
  const std::size_t header_size = columns + (is_short ? 1 : 2);
  record.resize(header_size + columns * kNumberSize);
  std::byte* const begin = record.data();
  if (is_short) {
    begin[0] = static_cast<std::byte>(header_size);
  } else {
    begin[0] = static_cast<std::byte>(0x80 | header_size >> 7);
    begin[1] = static_cast<std::byte>(header_size & 0x7F);
  }
  RecordWriter writer(begin + header_size - columns, begin + header_size);
  writer.integer(key.rank);
  writer.integer(key.step);
  writer.integer(key.target_id);
  writer.integer(key.metric_id);
  for (const double value : values) writer.real(value);
  record.resize(static_cast<std::size_t>(writer.end() - begin));
}

}  // namespace trendprobe
