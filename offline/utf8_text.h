// Which bytes are text that SQLite and every reader of a trend database take: UTF-8 without NUL.
//
// Free functions, thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trendprobe {

/// Offset of the first byte that is NUL or belongs to no character; none if there is none.
std::optional<std::size_t> find_bad_byte(std::string_view bytes);

/// True if the text is valid UTF-8 without NUL.
bool is_text(std::string_view bytes);

/// The text with U+FFFD in place of every byte that belongs to no character, and of NUL.
std::string repaired_text(std::string_view bytes);

}  // namespace trendprobe
