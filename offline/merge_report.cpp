#include "offline/merge_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>

namespace trendprobe {
namespace {

/// 1234567 → "1,234,567".
std::string with_commas(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string range_of(std::int64_t first, std::int64_t last) {
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

bool same_place(const NonFiniteFinding& a, const NonFiniteFinding& b) {
  return a.step == b.step && a.rank == b.rank && a.metric == b.metric && a.target == b.target;
}

}  // namespace

std::string describe(const MergeSummary& summary) {
  std::string text = fmt::format("{}\n", summary.database.string());
  const auto line = [&text](std::string_view label, const std::string& value) {
    text += fmt::format("  {:<11}{}\n", label, value);
  };
  line("steps", fmt::format("{} (training step{} {})", with_commas(summary.global_steps),
                            summary.training_steps == 1 ? "" : "s",
                            range_of(summary.first_training_step, summary.last_training_step)));
  line("ranks", fmt::format("{} ({})", with_commas(summary.ranks),
                            range_of(summary.first_rank, summary.last_rank)));
  line("modules", fmt::format("{}, with {} targets", with_commas(summary.modules),
                              with_commas(summary.targets)));
  line("rows", with_commas(summary.records));
  if (summary.superseded > 0) {
    line("superseded", fmt::format("{} rows, by a later run or a more exact source",
                                   with_commas(summary.superseded)));
  }
  if (summary.nonfinite_values == 0) {
    line("non-finite", "none");
    return text;
  }
  line("non-finite", fmt::format("{} values; the first, by step and network order:",
                                 with_commas(summary.nonfinite_values)));
  const std::vector<NonFiniteFinding>& found = summary.first_nonfinite;
  for (std::size_t i = 0; i < found.size();) {
    std::string statistics;
    std::size_t end = i;
    for (; end < found.size() && same_place(found[i], found[end]); ++end) {
      statistics +=
          fmt::format("{}{} {}", end == i ? "" : ", ", found[end].statistic, found[end].value);
    }
    text += fmt::format("    step {} (training step {}, micro-step {}), rank {}: {} {}: {}\n",
                        found[i].step, found[i].training_step, found[i].micro_step, found[i].rank,
                        found[i].metric, found[i].target, statistics);
    i = end;
  }
  return text;
}

std::string describe(const std::vector<Issue>& issues, std::size_t limit) {
  if (issues.empty()) return {};
  std::vector<Issue> sorted = issues;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Issue& a, const Issue& b) { return a.severity > b.severity; });
  std::string text = "What the input had:\n";
  for (std::size_t i = 0; i < std::min(limit, sorted.size()); ++i) {
    const Issue& issue = sorted[i];
    text += fmt::format("  {:<9}{}{}{}: {}{}{}\n", to_string(issue.severity), issue.path,
                        issue.location.empty() ? "" : ", ", issue.location, issue.what,
                        issue.kept.empty() ? "" : "; kept: ", issue.kept);
  }
  if (sorted.size() > limit) {
    text += fmt::format("  … and {} more; all are in the table trendprobe_issues of the database\n",
                        with_commas(sorted.size() - limit));
  }
  if (sorted.front().severity != Severity::kNotice) {
    text +=
        "What was kept is in the database. For the rest, copy or collect these files again and "
        "merge anew.\n";
  }
  return text;
}

}  // namespace trendprobe
