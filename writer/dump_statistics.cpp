#include "writer/dump_statistics.h"

#include <algorithm>

namespace trendprobe {

std::optional<DumpStatistics> DumpStatistics::named(std::span<const std::string> names) {
  DumpStatistics chosen;
  chosen.bits_ = 0;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(kDumpStatisticNames, name);
    if (found == kDumpStatisticNames.end()) return std::nullopt;
    chosen.bits_ |= bit(static_cast<DumpStatistic>(found - kDumpStatisticNames.begin()));
  }
  return chosen.bits_ == 0 ? std::nullopt : std::optional(chosen);
}

std::vector<std::string> DumpStatistics::names() const {
  std::vector<std::string> names;
  names.reserve(size());
  for (std::size_t i = 0; i < kDumpStatisticNames.size(); ++i) {
    if (contains(static_cast<DumpStatistic>(i))) names.emplace_back(kDumpStatisticNames[i]);
  }
  return names;
}

}  // namespace trendprobe
