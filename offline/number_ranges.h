// Lists of whole numbers as the flags --steps and --ranks take them: "3", "0-7", "0-3,8,16-".
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace trendprobe {

class NumberRanges {
 public:
  /// Everything.
  NumberRanges() = default;
  /// Parses a comma-separated list of numbers and ranges, both ends included; a range without an
  /// end has none. Throws std::invalid_argument, whose text names the part that is wrong and what
  /// is allowed.
  explicit NumberRanges(std::string_view text);

  bool contains(std::int64_t number) const;
  bool is_everything() const { return ranges_.empty(); }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;
};

}  // namespace trendprobe
