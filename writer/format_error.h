// A file that SQLite can open but that is not what its name says.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace trendprobe {

/// Thrown by readers for a file of another application, of a newer format version, or whose
/// contents break docs/format.md.
class FormatError : public std::runtime_error {
 public:
  FormatError(const std::filesystem::path& path, const std::string& what)
      : std::runtime_error(path.string() + ": " + what) {}
};

}  // namespace trendprobe
