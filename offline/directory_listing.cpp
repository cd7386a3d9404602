#include "offline/directory_listing.h"

#include <algorithm>
#include <system_error>

namespace trendprobe {

namespace fs = std::filesystem;

std::vector<fs::path> listed_entries(const fs::path& directory, Diagnostics& diagnostics) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) {
    diagnostics.report({Severity::kSkipped,
                        directory.string(),
                        {},
                        "can't be read: " + error.message(),
                        "what was listed before"});
  }
  return entries;
}

std::vector<fs::path> sorted_entries(const fs::path& directory, Diagnostics& diagnostics) {
  std::vector<fs::path> entries = listed_entries(directory, diagnostics);
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_directory_or_link(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

}  // namespace trendprobe
