// What is in a directory.
//
// Pure functions of the file system; thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "offline/diagnostics.h"

namespace trendprobe {

/// The entries of a directory in the order in which the file system lists them, as Python's
/// os.listdir() does. What can't be listed is reported as skipped.
std::vector<std::filesystem::path> listed_entries(const std::filesystem::path& directory,
                                                  Diagnostics& diagnostics);

/// The entries of a directory, sorted by name. What can't be listed is reported as skipped.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& directory,
                                                  Diagnostics& diagnostics);

/// The files of a directory whose names end in `ending`, sorted. Links that lead nowhere are among
/// them, so that whoever opens one says what is wrong with it; other links count as what they lead
/// to. What can't be listed is left out.
std::vector<std::filesystem::path> files_ending_in(const std::filesystem::path& directory,
                                                   std::string_view ending);

/// True if a directory that lies in `directory`, and that `is_child` takes, holds something whose
/// name `is_file` takes.
bool has_file_in_child(const std::filesystem::path& directory,
                       const std::function<bool(const std::filesystem::path&)>& is_child,
                       const std::function<bool(std::string_view)>& is_file);

/// True for a directory, or a link to one; false for all else, errors included.
bool is_directory_or_link(const std::filesystem::path& path);

/// Bytes in a file; 0 where that can't be told.
std::uint64_t size_of(const std::filesystem::path& path);

}  // namespace trendprobe
