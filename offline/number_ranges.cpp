#include "offline/number_ranges.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string>

namespace trendprobe {
namespace {

/// A whole number from 0, nothing before or after it; -1 for anything else.
std::int64_t parse_number(std::string_view text) {
  std::int64_t number = -1;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? number : -1;
}

}  // namespace

NumberRanges::NumberRanges(std::string_view text) {
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::int64_t first = parse_number(part.substr(0, dash));
    std::int64_t last = first;
    if (dash != std::string_view::npos) {
      const std::string_view end = part.substr(dash + 1);
      last = end.empty() ? std::numeric_limits<std::int64_t>::max() : parse_number(end);
    }
    if (first < 0 || last < first) {
      throw std::invalid_argument(
          "\"" + std::string(part) +
          "\" is no number and no range: expected a list such as 0-3,8,16-");
    }
    ranges_.emplace_back(first, last);
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

bool NumberRanges::contains(std::int64_t number) const {
  return ranges_.empty() ||
         std::any_of(ranges_.begin(), ranges_.end(), [number](const auto& range) {
           return range.first <= number && number <= range.second;
         });
}

}  // namespace trendprobe
