// Rows of a CSV text, without copying: RFC 4180, with LF or CRLF, quoted fields included.
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

class CsvReader {
 public:
  /// `text` is borrowed. A byte order mark is skipped.
  explicit CsvReader(std::string_view text);

  /// Reads the next row that is not empty. The fields view the text, or strings of the reader where
  /// a field holds a doubled quote, until the next call. False at the end of the text.
  bool next(std::vector<std::string_view>& fields);

  /// The line that the last row began at, from 1.
  std::size_t line() const { return row_line_; }
  /// The last row ended with a line break: it was not cut.
  bool is_terminated() const { return is_terminated_; }

 private:
  std::string_view quoted_field();

  const char* next_;
  const char* end_;
  std::size_t line_ = 1;
  std::size_t row_line_ = 0;
  bool is_terminated_ = false;
  std::deque<std::string> unquoted_;
};

}  // namespace trendprobe
