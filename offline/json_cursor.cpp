#include "offline/json_cursor.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>

namespace trendprobe {
namespace {

std::optional<std::uint32_t> hex4(const char* digits, const char* end) {
  if (end - digits < 4) return std::nullopt;
  std::uint32_t value = 0;
  const auto [stop, error] = std::from_chars(digits, digits + 4, value, 16);
  if (error != std::errc() || stop != digits + 4) return std::nullopt;
  return value;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&text](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Where a number that is none stops being one: the end of the text if it may have been cut there.
const char* number_rest(const char* at, const char* end) {
  if (at < end && (*at == 'e' || *at == 'E')) {
    ++at;
    if (at < end && (*at == '+' || *at == '-')) ++at;
  }
  return at;
}

}  // namespace

void JsonCursor::fail(const std::string& what) const {
  throw JsonError(byte(), next_ >= end_ ? "the text ends in the middle" : what);
}

void JsonCursor::fail_expecting(char c) const { fail(std::string("'") + c + "' was expected"); }

void JsonCursor::fail_expecting(char c, char other) const {
  fail(std::string("'") + c + "' or '" + other + "' was expected");
}

/// A string of any form; string() has taken those without escapes that do not end near the end of
/// the text.
std::string_view JsonCursor::any_string() {
  if (*next_ != '"') fail("a string was expected");
  const char* start = ++next_;
  const auto rest = static_cast<std::size_t>(end_ - next_);
  const auto* quote = static_cast<const char*>(std::memchr(start, '"', rest));
  if (quote == nullptr) {
    next_ = end_;
    fail("");
  }
  const auto length = static_cast<std::size_t>(quote - start);
  if (std::memchr(start, '\\', length) != nullptr) return unescape(start);
  next_ = quote + 1;
  return {start, length};
}

std::string_view JsonCursor::unescape(const char* start) {
  std::string text;
  next_ = start;
  while (next_ < end_ && *next_ != '"') {
    if (*next_ != '\\') {
      text.push_back(*next_++);
      continue;
    }
    ++next_;
    switch (next_ < end_ ? *next_ : '\0') {
      case '"':
      case '\\':
      case '/':
        text.push_back(*next_);
        break;
      case 'b':
        text.push_back('\b');
        break;
      case 'f':
        text.push_back('\f');
        break;
      case 'n':
        text.push_back('\n');
        break;
      case 'r':
        text.push_back('\r');
        break;
      case 't':
        text.push_back('\t');
        break;
      case 'u': {
        std::optional<std::uint32_t> code = hex4(next_ + 1, end_);
        if (!code) {
          if (end_ - next_ < 5) next_ = end_;  // cut inside the escape
          fail("'\\u' needs four hexadecimal digits");
        }
        next_ += 4;
        if (*code >= 0xD800 && *code < 0xDC00 && end_ - next_ > 6 && next_[1] == '\\' &&
            next_[2] == 'u') {
          const std::optional<std::uint32_t> low = hex4(next_ + 3, end_);
          if (low && *low >= 0xDC00 && *low < 0xE000) {
            code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
            next_ += 6;
          }
        }
        // A lone surrogate is no character, and no valid UTF-8; at NUL SQL's functions stop.
        append_utf8(text, *code == 0 || (*code >= 0xD800 && *code < 0xE000) ? 0xFFFD : *code);
        break;
      }
      default:
        fail("an unknown escape");
    }
    ++next_;
  }
  if (next_ >= end_) fail("");
  ++next_;
  return unescaped_.emplace_back(std::move(text));
}

void JsonCursor::word(std::string_view text) {
  if (static_cast<std::size_t>(end_ - next_) < text.size() ||
      std::memcmp(next_, text.data(), text.size()) != 0) {
    if (std::string_view(next_, static_cast<std::size_t>(end_ - next_)) ==
        text.substr(0, static_cast<std::size_t>(end_ - next_))) {
      next_ = end_;  // cut inside the word
    }
    fail("a value was expected");
  }
  next_ += text.size();
}

double JsonCursor::number() {
  skip_space();
  if (*next_ == 'N') {
    word("NaN");
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (*next_ == 'I') {
    word("Infinity");
    return std::numeric_limits<double>::infinity();
  }
  const char* digits = *next_ == '-' ? next_ + 1 : next_;
  if (*digits == 'I') {
    word("-Infinity");
    return -std::numeric_limits<double>::infinity();
  }
  double value = 0;
  // std::from_chars() also takes -inf, -nan, -.5 and 01, which are no JSON.
  const bool starts_well = is_digit(*digits) && !(*digits == '0' && is_digit(digits[1]));
  const auto [stop, error] = std::from_chars(next_, end_, value);
  if (!starts_well || stop[-1] == '.' || *stop == 'e' || *stop == 'E') {
    next_ = number_rest(stop < digits ? digits : stop, end_);
    fail("a number was expected");
  }
  if (error == std::errc::result_out_of_range) {
    // Too large or too small for a double: what Python's float() makes of it.
    value = std::strtod(std::string(next_, stop).c_str(), nullptr);
  }
  next_ = stop;
  if (next_ >= end_) fail("");  // more digits may have followed
  return value;
}

bool JsonCursor::skip_integer() {
  const char* at = *next_ == '-' ? next_ + 1 : next_;
  if (!is_digit(*at) || (*at == '0' && is_digit(at[1]))) return false;
  while (is_digit(*at)) ++at;
  if (*at == '.' || *at == 'e' || *at == 'E' || at >= end_) return false;
  next_ = at;
  return true;
}

void JsonCursor::skip_nested(int depth) {
  if (depth > kMaxDepth) fail("values are nested deeper than " + std::to_string(kMaxDepth));
  switch (kind()) {
    case Kind::kObject:
      object([&](std::string_view) { skip_nested(depth + 1); });
      break;
    case Kind::kArray:
      array([&](std::size_t) { skip_nested(depth + 1); });
      break;
    case Kind::kString:
      string();
      break;
    case Kind::kNumber:
      if (!skip_integer()) number();
      break;
    case Kind::kTrue:
      word("true");
      break;
    case Kind::kFalse:
      word("false");
      break;
    case Kind::kNull:
      word("null");
      break;
  }
}

void JsonCursor::finish() {
  skip_space();
  if (next_ < end_) fail("nothing was expected after the value");
}

}  // namespace trendprobe
