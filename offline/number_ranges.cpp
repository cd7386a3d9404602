#include "offline/number_ranges.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "offline/whole_number.h"

namespace trendprobe {
NumberRanges::NumberRanges(std::string_view text) {
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::optional<std::int64_t> first = parse_whole_number(part.substr(0, dash));
    std::optional<std::int64_t> last = first;
    if (dash != std::string_view::npos) {
      const std::string_view end = part.substr(dash + 1);
      last = end.empty() ? std::numeric_limits<std::int64_t>::max() : parse_whole_number(end);
    }
    if (!first || !last || *last < *first) {
      throw std::invalid_argument(
          "\"" + std::string(part) +
          "\" is no number and no range: expected a list such as 0-3,8,16-");
    }
    ranges_.emplace_back(*first, *last);
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
