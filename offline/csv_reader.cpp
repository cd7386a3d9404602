#include "offline/csv_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "offline/word_search.h"

namespace trendprobe {
namespace {

/// The first comma or line feed; `end` if there is none.
const char* find_field_end(const char* at, const char* end) {
  for (; end - at >= 8; at += 8) {
    const std::uint64_t word = load_word(at);
    const std::uint64_t found =
        zero_bytes(word ^ repeated(',')) | zero_bytes(word ^ repeated('\n'));
    if (found != 0) return at + bytes_before(found);
  }
  while (at < end && *at != ',' && *at != '\n') ++at;
  return at;
}

const char* find_byte(const char* at, const char* end, char byte) {
  if (at == end) return end;
  const void* found = std::memchr(at, byte, static_cast<std::size_t>(end - at));
  return found == nullptr ? end : static_cast<const char*>(found);
}

}  // namespace

CsvReader::CsvReader(std::string_view text)
    : begin_(text.data()),
      next_(text.data()),
      end_(text.data() + text.size()),
      is_all_(true),
      row_(text.data()) {
  skip_byte_order_mark();
}

CsvReader::CsvReader(ReadBytes read, std::size_t buffer_bytes)
    : read_(std::move(read)),
      buffer_(std::make_unique_for_overwrite<char[]>(buffer_bytes)),
      buffer_bytes_(buffer_bytes),
      begin_(buffer_.get()),
      next_(begin_),
      end_(begin_),
      row_(begin_) {
  while (!is_all_ && end_ - begin_ < 3 && read_more()) {
  }
  skip_byte_order_mark();
}

void CsvReader::skip_byte_order_mark() {
  if (std::string_view(begin_, static_cast<std::size_t>(end_ - begin_))
          .starts_with("\xEF\xBB\xBF")) {
    next_ += 3;
  }
}

bool CsvReader::read_more() {
  const auto left = static_cast<std::size_t>(end_ - next_);
  if (left == buffer_bytes_) return false;
  buffer_offset_ += static_cast<std::size_t>(next_ - begin_);
  std::memmove(buffer_.get(), next_, left);
  const std::size_t count = read_(buffer_.get() + left, buffer_bytes_ - left);
  is_all_ = count == 0;
  next_ = begin_;
  end_ = begin_ + left + count;
  return true;
}

bool CsvReader::next(std::vector<std::string_view>& fields) {
  while (true) {
    // Empty lines are no rows.
    while (next_ < end_ && (*next_ == '\n' || *next_ == '\r')) {
      if (*next_ == '\n') ++line_;
      ++next_;
    }
    row_ = next_;
    row_line_ = line_;
    row_offset_ = buffer_offset_ + static_cast<std::size_t>(row_ - begin_);
    fields.clear();
    unquoted_.clear();
    is_damaged_ = false;
    is_terminated_ = false;
    if (next_ == end_) {
      if (is_all_) return false;
      read_more();
      continue;
    }
    const RowState state = read_row(fields);
    if (state == RowState::kWhole) return true;
    next_ = row_;
    line_ = row_line_;
    if (state == RowState::kNeedsMore && read_more()) continue;
    fields.clear();
    is_damaged_ = true;
    end_damaged_row();
    return true;
  }
}

CsvReader::RowState CsvReader::read_row(std::vector<std::string_view>& fields) {
  while (true) {
    if (next_ < end_ && *next_ == '"') {
      const RowState state = read_quoted_field(fields);
      if (state != RowState::kWhole) return state;
      if (next_ < end_ && *next_ == '\r' && next_ + 1 < end_ && next_[1] == '\n') ++next_;
    } else {
      const char* start = next_;
      next_ = find_field_end(next_, end_);
      const char* stop = next_;
      if (stop > start && stop[-1] == '\r' && (stop == end_ || *stop == '\n')) --stop;
      fields.emplace_back(start, static_cast<std::size_t>(stop - start));
    }
    if (next_ == end_) return is_all_ ? RowState::kWhole : RowState::kNeedsMore;
    if (*next_ == '\n') {
      ++next_;
      ++line_;
      is_terminated_ = true;
      return RowState::kWhole;
    }
    ++next_;  // the comma
  }
}

/// The field whose opening quote is next; leaves the cursor behind the closing quote.
CsvReader::RowState CsvReader::read_quoted_field(std::vector<std::string_view>& fields) {
  const char* start = ++next_;
  const char* copied = start;
  std::string* copy = nullptr;
  while (true) {
    const char* quote = find_byte(next_, end_, '"');
    if (static_cast<std::size_t>(quote - start) > kMaxQuotedBytes) return RowState::kDamaged;
    if (quote == end_) return is_all_ ? RowState::kDamaged : RowState::kNeedsMore;
    next_ = quote + 1;
    if (next_ == end_) {
      if (!is_all_) return RowState::kNeedsMore;
    } else if (*next_ == '"') {
      if (copy == nullptr) copy = &unquoted_.emplace_back();
      copy->append(copied, next_);
      copied = ++next_;
      continue;
    } else if (*next_ == '\r') {
      if (next_ + 1 == end_ && !is_all_) return RowState::kNeedsMore;
      if (next_ + 1 < end_ && next_[1] != '\n') return RowState::kDamaged;
      if (next_ + 1 == end_) ++next_;  // cut between CR and LF
    } else if (*next_ != ',' && *next_ != '\n') {
      return RowState::kDamaged;
    }
    line_ += static_cast<std::size_t>(std::count(start, quote, '\n'));
    if (copy == nullptr) {
      fields.emplace_back(start, static_cast<std::size_t>(quote - start));
    } else {
      fields.emplace_back(copy->append(copied, quote));
    }
    return RowState::kWhole;
  }
}

void CsvReader::end_damaged_row() {
  while (true) {
    next_ = find_byte(next_, end_, '\n');
    if (next_ < end_) {
      ++next_;
      ++line_;
      is_terminated_ = true;
      return;
    }
    if (is_all_) return;
    read_more();  // gives up what was read of the row
    row_ = next_;
  }
}

}  // namespace trendprobe
