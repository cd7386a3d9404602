#include "offline/whole_number.h"

#include <charconv>
#include <system_error>

namespace trendprobe {

std::optional<std::int64_t> parse_whole_number(std::string_view text) {
  if (text.empty() || text.front() == '-') return std::nullopt;
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace trendprobe
