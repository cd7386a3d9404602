// Rows of CSV: RFC 4180, with LF or CRLF, a byte order mark, quoted fields and line breaks in them.
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

class CsvReader {
 public:
  /// Puts the next bytes of the input into the buffer and returns how many; 0 at the end.
  using ReadBytes = std::function<std::size_t(char* buffer, std::size_t size)>;

  /// A longer row, or a longer quoted field, is damage: a quote that nothing closes.
  static constexpr std::size_t kMaxRowBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxQuotedBytes = std::size_t{1} << 16;

  /// `text` is borrowed.
  explicit CsvReader(std::string_view text);
  /// Reads as it goes, in memory of `buffer_bytes`; a row that does not fit is damaged.
  explicit CsvReader(ReadBytes read, std::size_t buffer_bytes = kMaxRowBytes);

  /// Reads the next row that is not empty. The fields are valid until the next call. False at the
  /// end.
  ///
  /// A row with a quoted field that is never closed, or that has text behind its closing quote, has
  /// no fields: it is_damaged(), ends with its first line, and the next row is what follows it.
  bool next(std::vector<std::string_view>& fields);

  bool is_damaged() const { return is_damaged_; }
  /// The last row ended with a line break: it was not cut.
  bool is_terminated() const { return is_terminated_; }
  /// The line that the last row began at, from 1.
  std::size_t line() const { return row_line_; }
  /// The byte that the last row began at, from 0.
  std::uint64_t offset() const { return row_offset_; }
  /// All of the last row with its line break; of a damaged row that is longer than the buffer, its
  /// end.
  std::string_view row() const { return {row_, static_cast<std::size_t>(next_ - row_)}; }

 private:
  enum class RowState { kWhole, kDamaged, kNeedsMore };

  void skip_byte_order_mark();
  RowState read_row(std::vector<std::string_view>& fields);
  RowState read_quoted_field(std::vector<std::string_view>& fields);
  /// Moves what is left to the front of the buffer and reads behind it. False if the buffer is
  /// full.
  bool read_more();
  void end_damaged_row();

  ReadBytes read_;
  std::unique_ptr<char[]> buffer_;
  std::size_t buffer_bytes_ = 0;
  std::uint64_t buffer_offset_ = 0;  // of begin_ in the input
  const char* begin_;
  const char* next_;
  const char* end_;
  bool is_all_ = false;  // nothing follows end_

  const char* row_;
  std::uint64_t row_offset_ = 0;
  std::size_t line_ = 1;
  std::size_t row_line_ = 0;
  bool is_damaged_ = false;
  bool is_terminated_ = false;
  std::deque<std::string> unquoted_;  // fields with doubled quotes
};

}  // namespace trendprobe
