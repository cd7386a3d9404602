// Checks a trend database or a shard against docs/format.md: `trendprobe verify`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trendprobe {

struct Verification {
  /// What breaks the format, one sentence each; empty: the file is sound.
  std::vector<std::string> problems;
  /// What was checked and is worth knowing (counts; that a shard was not closed).
  std::vector<std::string> remarks;
};

/// Reads the whole file: SQLite's own integrity check, the format version, the axes, all keys
/// between tables, tags, and that every block or tile decodes and holds as many records as it says.
/// Throws SqliteError when the file can't be opened at all, FormatError when it is of another kind.
Verification verify_file(const std::filesystem::path& path);

}  // namespace trendprobe
