// `--mapping FILE`: a JSON object of strings, each a substring replacement on names.
#pragma once

#include <filesystem>

#include "writer/dump_step.h"

namespace trendprobe {

/// The replacements in file order. Throws std::runtime_error that says what is wrong with which
/// file.
NameMapping read_mapping_file(const std::filesystem::path& path);

}  // namespace trendprobe
