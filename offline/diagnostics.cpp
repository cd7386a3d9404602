#include "offline/diagnostics.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace trendprobe {

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::kNotice:
      return "notice";
    case Severity::kRepaired:
      return "repaired";
    case Severity::kSkipped:
      return "skipped";
  }
  return "unknown";
}

std::string without_path(std::string_view what, const std::filesystem::path& path) {
  const std::string prefix = path.string() + ": ";
  if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
  return std::string(what);
}

void Diagnostics::report(Issue issue) {
  const std::lock_guard lock(mutex_);
  issues_.push_back(std::move(issue));
}

std::vector<Issue> Diagnostics::issues() const {
  std::vector<Issue> sorted;
  {
    const std::lock_guard lock(mutex_);
    sorted = issues_;
  }
  std::sort(sorted.begin(), sorted.end(), [](const Issue& a, const Issue& b) {
    return std::tie(a.path, a.location, a.what, a.kept, a.severity) <
           std::tie(b.path, b.location, b.what, b.kept, b.severity);
  });
  return sorted;
}

bool Diagnostics::has_losses() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(issues_.begin(), issues_.end(),
                     [](const Issue& issue) { return issue.severity != Severity::kNotice; });
}

}  // namespace trendprobe
