#include "offline/csv_reader.h"

#include <algorithm>

namespace trendprobe {

CsvReader::CsvReader(std::string_view text) : next_(text.data()), end_(text.data() + text.size()) {
  if (text.starts_with("\xEF\xBB\xBF")) next_ += 3;
}

/// The field whose opening quote is next; leaves the cursor behind the closing quote.
std::string_view CsvReader::quoted_field() {
  const char* start = ++next_;
  std::string* copy = nullptr;
  const char* copied = start;
  while (next_ < end_) {
    if (*next_ == '\n') ++line_;
    if (*next_ != '"') {
      ++next_;
      continue;
    }
    if (next_ + 1 == end_ || next_[1] != '"') break;
    if (copy == nullptr) copy = &unquoted_.emplace_back();
    copy->append(copied, next_ + 1);
    next_ += 2;
    copied = next_;
  }
  const char* stop = next_;
  if (next_ < end_) ++next_;
  if (copy == nullptr) return {start, static_cast<std::size_t>(stop - start)};
  copy->append(copied, stop);
  return *copy;
}

bool CsvReader::next(std::vector<std::string_view>& fields) {
  unquoted_.clear();
  while (next_ < end_ && (*next_ == '\n' || *next_ == '\r')) {
    if (*next_ == '\n') ++line_;
    ++next_;
  }
  fields.clear();
  if (next_ >= end_) return false;
  row_line_ = line_;
  is_terminated_ = false;
  while (true) {
    if (next_ < end_ && *next_ == '"') {
      fields.push_back(quoted_field());
      // What follows the closing quote up to the comma is no CSV; it is left out.
      while (next_ < end_ && *next_ != ',' && *next_ != '\n' && *next_ != '\r') ++next_;
    } else {
      const char* start = next_;
      while (next_ < end_ && *next_ != ',' && *next_ != '\n' && *next_ != '\r') ++next_;
      fields.emplace_back(start, static_cast<std::size_t>(next_ - start));
    }
    if (next_ >= end_) return true;
    if (*next_ == ',') {
      ++next_;
      continue;
    }
    if (*next_ == '\r' && next_ + 1 < end_ && next_[1] == '\n') ++next_;
    ++next_;
    ++line_;
    is_terminated_ = true;
    return true;
  }
}

}  // namespace trendprobe
