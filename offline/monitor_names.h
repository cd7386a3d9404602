// What the names in a monitor tree of msProbe's TrainerMon say:
// <time>-rank<R>-<id>/<metric>_<first>-<last>.csv.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace trendprobe {

/// A directory of one rank.
struct RankDirectory {
  std::filesystem::path path;
  std::int32_t rank = 0;
  /// Seconds since the year began (in a leap year, local time of the writer); none where the name's
  /// time has another form than "Dec03_21-34-40".
  std::optional<std::int64_t> second_of_year;
};

/// msProbe's pattern ([\w-]{0,20})-rank(\d{1,5})- at the start of the last part of the path; none
/// where it does not fit.
std::optional<RankDirectory> parse_rank_directory(const std::filesystem::path& path);

/// When each of the directories began, in ns since 1970; 0 where the name does not say. The names
/// hold no year: all are taken to lie within twelve months that begin after the longest time in
/// which no directory began, the latest that end before `last_change`, when the directories were
/// last written to.
std::vector<std::int64_t> start_times(const std::vector<RankDirectory>& directories,
                                      std::chrono::sys_seconds last_change);

/// A CSV file's name.
struct MonitorFileName {
  /// Index into trend_metrics(RecordKind::kMonitor).
  std::size_t metric = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

/// None where it is no monitor file's name. msProbe lets any text follow ".csv":
/// `with_any_ending` does, too.
std::optional<MonitorFileName> parse_monitor_file_name(std::string_view name, bool with_any_ending);

}  // namespace trendprobe
