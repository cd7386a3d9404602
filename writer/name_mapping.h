// Substring replacements on names: `--mapping`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "writer/record.h"

namespace trendprobe {

/// (what, by what), in the order in which they are made. No key is empty.
using NameMapping = std::vector<std::pair<std::string, std::string>>;

/// The text with every occurrence of `from` replaced, left to right, as Python's str.replace does.
/// `from` must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// The name after all replacements.
std::string mapped_name(std::string_view name, const NameMapping& mapping);

/// Interns the mapped targets of one table in another, and returns the index of each there: the
/// mapping may make one target of two.
std::vector<std::uint32_t> intern_mapped(const TargetTable& from, const NameMapping& mapping,
                                         TargetTable& to);

}  // namespace trendprobe
