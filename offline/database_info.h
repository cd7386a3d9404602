// The text that `trendprobe info` prints.
#pragma once

#include <filesystem>
#include <string>

namespace trendprobe {

/// What a trend database or a shard holds. Throws SqliteError or FormatError for other files.
std::string describe_file(const std::filesystem::path& path);

}  // namespace trendprobe
