#include "offline/monitor_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "offline/whole_number.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::int64_t kDaySeconds = std::int64_t{24} * 3600;
constexpr std::int64_t kYearSeconds = 366 * kDaySeconds;
constexpr std::array<int, 12> kDaysBefore = {0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335};

/// "Dec03_21-34-40".
std::optional<std::int64_t> parse_time(std::string_view time) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  if (time.size() != 14 || time[5] != '_' || time[8] != '-' || time[11] != '-') return std::nullopt;
  const std::size_t month = kMonths.find(time.substr(0, 3));
  const auto day = parse_whole_number(time.substr(3, 2));
  const auto hour = parse_whole_number(time.substr(6, 2));
  const auto minute = parse_whole_number(time.substr(9, 2));
  const auto second = parse_whole_number(time.substr(12, 2));
  if (month == std::string_view::npos || month % 3 != 0 || !day || !hour || !minute || !second ||
      *day < 1 || *day > 31 || *hour > 23 || *minute > 59 || *second > 60) {
    return std::nullopt;
  }
  return (kDaysBefore[month / 3] + *day - 1) * kDaySeconds + *hour * 3600 + *minute * 60 + *second;
}

/// The first second of the year that all directories lie within.
std::int64_t year_begin(const std::vector<RankDirectory>& directories) {
  std::vector<std::int64_t> times;
  for (const RankDirectory& directory : directories) {
    if (directory.second_of_year) times.push_back(*directory.second_of_year);
  }
  std::sort(times.begin(), times.end());
  if (times.empty()) return 0;
  std::int64_t begin = times.front();
  std::int64_t longest = times.front() + kYearSeconds - times.back();
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] - times[i - 1] > longest) {
      longest = times[i] - times[i - 1];
      begin = times[i];
    }
  }
  return begin;
}

/// Seconds since 1970 of a second of a year. msProbe's names hold the time of Asia/Shanghai.
std::int64_t absolute_seconds(int year, std::int64_t second_of_year) {
  constexpr std::int64_t kShanghai = std::int64_t{8} * 3600;
  const std::int64_t day_of_leap_year = second_of_year / kDaySeconds;
  std::size_t month = kDaysBefore.size() - 1;
  while (kDaysBefore[month] > day_of_leap_year) --month;
  const std::chrono::sys_days first = std::chrono::year(year) / static_cast<int>(month + 1) / 1;
  const std::int64_t day = first.time_since_epoch().count() + day_of_leap_year - kDaysBefore[month];
  return day * kDaySeconds + second_of_year % kDaySeconds - kShanghai;
}

}  // namespace

std::optional<RankDirectory> parse_rank_directory(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string_view text(name);
  const auto is_word = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) != 0 || c == '_' || c == '-' || byte >= 0x80;
  };
  // The pattern's first part is greedy: of several "-rank<R>-" the last that fits counts.
  for (std::size_t at = text.rfind("-rank", 20); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind("-rank", at - 1)) {
    const std::size_t digits = at + 5;
    const std::size_t end = text.find_first_not_of(kDigits, digits);
    if (end == std::string_view::npos || text[end] != '-' || end == digits || end - digits > 5 ||
        !std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), is_word)) {
      continue;
    }
    return RankDirectory{
        path, static_cast<std::int32_t>(*parse_whole_number(text.substr(digits, end - digits))),
        parse_time(text.substr(0, at))};
  }
  return std::nullopt;
}

std::vector<std::int64_t> start_times(const std::vector<RankDirectory>& directories,
                                      std::chrono::sys_seconds last_change) {
  std::vector<std::int64_t> starts(directories.size(), 0);
  const std::int64_t begin = year_begin(directories);
  const auto is_after_new_year = [&](const RankDirectory& directory) {
    return *directory.second_of_year < begin;
  };
  std::optional<std::int64_t> latest;  // of those after New Year, if any is
  bool crosses_new_year = false;
  for (const RankDirectory& directory : directories) {
    if (!directory.second_of_year) continue;
    if (is_after_new_year(directory) && !crosses_new_year) {
      crosses_new_year = true;
      latest.reset();
    }
    if (is_after_new_year(directory) == crosses_new_year) {
      latest = std::max(latest.value_or(0), *directory.second_of_year);
    }
  }
  if (!latest) return starts;
  // Clocks and time zones differ by up to a day.
  const std::int64_t limit = last_change.time_since_epoch().count() + kDaySeconds;
  const auto day = std::chrono::floor<std::chrono::days>(last_change);
  int year = static_cast<int>(std::chrono::year_month_day(day).year()) + 1;
  while (year > 1971 && absolute_seconds(year, *latest) > limit) --year;
  for (std::size_t i = 0; i < directories.size(); ++i) {
    if (!directories[i].second_of_year) continue;
    const bool is_year_before = crosses_new_year && !is_after_new_year(directories[i]);
    starts[i] = absolute_seconds(is_year_before ? year - 1 : year, *directories[i].second_of_year) *
                1'000'000'000;
  }
  return starts;
}

std::optional<MonitorFileName> parse_monitor_file_name(std::string_view name,
                                                       bool with_any_ending) {
  const std::size_t underscore = name.rfind('_');
  if (underscore == std::string_view::npos) return std::nullopt;
  const auto metrics = trend_metrics(RecordKind::kMonitor);
  const auto metric = std::find(metrics.begin(), metrics.end(), name.substr(0, underscore));
  const std::string_view rest = name.substr(underscore + 1);
  const std::size_t dash = rest.find('-');
  const std::size_t dot = rest.find(".csv");
  if (metric == metrics.end() || dash == std::string_view::npos || dot == std::string_view::npos ||
      dot < dash || (!with_any_ending && dot + 4 != rest.size())) {
    return std::nullopt;
  }
  const auto first = parse_whole_number(rest.substr(0, dash));
  const auto last = parse_whole_number(rest.substr(dash + 1, dot - dash - 1));
  if (!first || !last) return std::nullopt;
  return MonitorFileName{static_cast<std::size_t>(metric - metrics.begin()), *first, *last};
}

}  // namespace trendprobe
