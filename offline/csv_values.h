// What the cells of a CSV file mean, as Python's csv and pandas write and read them.
//
// Free functions, thread-safe, independent of the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trendprobe {

/// True for a cell that pandas reads as a missing value: empty, "nan", "None", "NULL", …
bool is_missing_cell(std::string_view cell);

/// The number in a cell, correctly rounded: decimal, "nan", "inf", "-inf"; kMissing for an empty
/// cell and the words for "nothing"; none for other text. Surrounding blanks are ignored. Numbers
/// beyond a double become infinite or zero.
std::optional<double> parse_number(std::string_view cell);

/// The integer in a cell: "3", and "3.0" where pandas saw a gap in the column. A fraction is cut
/// off if `truncate` (as Python's int() does), and no integer otherwise.
std::optional<std::int64_t> parse_integer(std::string_view cell, bool truncate);

}  // namespace trendprobe
