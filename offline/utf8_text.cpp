#include "offline/utf8_text.h"

#include <cstdint>
#include <cstring>

namespace trendprobe {
namespace {

/// Bytes of the character at the front; 0 if it is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first == 0) return 0;
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return length;
}

/// How many bytes at the front are ASCII and not NUL, at least; a multiple of 8.
std::size_t ascii_prefix(std::string_view text) {
  constexpr std::uint64_t kHigh = 0x8080808080808080ULL;
  constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if (((word | (word - kOnes)) & kHigh) != 0) break;
  }
  return at;
}

}  // namespace

std::optional<std::size_t> find_bad_byte(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    at += ascii_prefix(bytes.substr(at));
    if (at == bytes.size()) break;
    const std::size_t length = character_length(bytes.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

bool is_text(std::string_view bytes) { return !find_bad_byte(bytes); }

std::string repaired_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = character_length(bytes);
    if (length == 0) {
      text.append("\xEF\xBF\xBD");
      bytes.remove_prefix(1);
    } else {
      text.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
    }
  }
  return text;
}

}  // namespace trendprobe
