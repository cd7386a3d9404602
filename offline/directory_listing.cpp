#include "offline/directory_listing.h"

#include <algorithm>
#include <string>
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

std::vector<fs::path> files_ending_in(const fs::path& directory, std::string_view ending) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code type_error;
    const fs::file_type type = it->status(type_error).type();
    const std::string name = it->path().filename().string();
    if (name.size() > ending.size() && name.ends_with(ending) &&
        (type == fs::file_type::regular || type == fs::file_type::not_found ||
         type == fs::file_type::none)) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool has_file_in_child(const fs::path& directory,
                       const std::function<bool(const fs::path&)>& is_child,
                       const std::function<bool(std::string_view)>& is_file) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code inner_error;
    if (!is_child(it->path()) || !it->is_directory(inner_error)) continue;
    for (fs::directory_iterator file(it->path(), inner_error); !inner_error && file != end;
         file.increment(inner_error)) {
      if (is_file(file->path().filename().string())) return true;
    }
  }
  return false;
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
