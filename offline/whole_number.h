// Numbers in the names of files and directories, and in flags.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trendprobe {

/// A text of digits only as a number; none for any other text, a sign included, or a number beyond
/// std::int64_t.
std::optional<std::int64_t> parse_whole_number(std::string_view text);

}  // namespace trendprobe
