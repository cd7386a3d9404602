// What is in a directory.
//
// Pure functions of the file system; thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
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

/// True for a directory, or a link to one; false for all else, errors included.
bool is_directory_or_link(const std::filesystem::path& path);

/// Bytes in a file; 0 where that can't be told.
std::uint64_t size_of(const std::filesystem::path& path);

}  // namespace trendprobe
