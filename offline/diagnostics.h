// What went wrong with the input, counted and kept: it is printed at the end, stored in
// trendprobe_issues, and decides the exit code. Readers report here and go on. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

enum class Severity : std::uint8_t {
  /// Worth knowing; nothing is missing.
  kNotice,
  /// Input was damaged; what could be read was kept.
  kRepaired,
  /// Input was left out.
  kSkipped,
};

/// "notice", "repaired" or "skipped".
std::string_view to_string(Severity severity);

/// One finding about one input.
struct Issue {
  Severity severity = Severity::kNotice;
  /// The file or directory.
  std::string path;
  /// "byte 1234", "line 17"; empty where it is the whole file.
  std::string location;
  /// What is wrong.
  std::string what;
  /// What was kept of it, and what to do.
  std::string kept;

  bool operator==(const Issue&) const = default;
};

/// The text of an error about `path` without the name of the file, which an Issue says anyway.
std::string without_path(std::string_view what, const std::filesystem::path& path);

class Diagnostics {
 public:
  void report(Issue issue);
  void notice(std::string path, std::string what) {
    report({Severity::kNotice, std::move(path), {}, std::move(what), {}});
  }

  /// All issues, sorted by path, location and text, so that they do not depend on the order of
  /// threads.
  std::vector<Issue> issues() const;
  /// True if anything was repaired or skipped.
  bool has_losses() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Issue> issues_;
};

}  // namespace trendprobe
