// Walks JSON text value by value, without building a tree: the shape of msProbe's files is known,
// and most of their bytes are numbers to be kept or skipped.
//
// Accepts what Python's json.dump writes, with the bare words NaN, Infinity and -Infinity.
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>

#include "offline/word_search.h"

namespace trendprobe {

/// The text is no JSON, or ends too early.
class JsonError : public std::runtime_error {
 public:
  JsonError(std::size_t byte, const std::string& what) : std::runtime_error(what), byte_(byte) {}
  /// Offset of the fault, from 0.
  std::size_t byte() const { return byte_; }

 private:
  std::size_t byte_;
};

class JsonCursor {
 public:
  enum class Kind : unsigned char { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull };

  /// `text` is borrowed and must be followed by a NUL (FileContents::text()). `unescaped` keeps the
  /// few strings that hold escapes; it must outlive the views that string() returns.
  JsonCursor(std::string_view text, std::deque<std::string>& unescaped)
      : begin_(text.data()), next_(begin_), end_(begin_ + text.size()), unescaped_(unescaped) {
    if (text.starts_with("\xEF\xBB\xBF")) next_ += 3;
  }

  /// The kind of the next value.
  Kind kind() {
    skip_space();
    switch (*next_) {
      case '{':
        return Kind::kObject;
      case '[':
        return Kind::kArray;
      case '"':
        return Kind::kString;
      case 't':
        return Kind::kTrue;
      case 'f':
        return Kind::kFalse;
      case 'n':
        return Kind::kNull;
      default:
        if (is_digit(*next_) || *next_ == '-' || *next_ == 'N' || *next_ == 'I') {
          return Kind::kNumber;
        }
        fail("a value was expected");
    }
  }
  /// The next value, a string.
  std::string_view string() {
    skip_space();
    if (*next_ == '"') {
      const char* const start = next_ + 1;
      for (const char* at = start; end_ - at >= 8; at += 8) {
        const std::uint64_t word = load_word(at);
        const std::uint64_t found =
            zero_bytes(word ^ repeated('"')) | zero_bytes(word ^ repeated('\\'));
        if (found == 0) continue;
        at += bytes_before(found);
        if (*at != '"') break;
        next_ = at + 1;
        return {start, static_cast<std::size_t>(at - start)};
      }
    }
    return any_string();
  }
  /// The next value, a number: NaN and infinities included.
  double number();
  /// Steps over true, false, null, or any other value.
  void skip() { skip_nested(0); }

  /// Calls visit(key) for each member of the next value, an object; the cursor is then before the
  /// member's value, and visit must consume it.
  template <typename Visit>
  void object(Visit&& visit) {
    open('{');
    if (closes('}')) return;
    while (true) {
      const std::string_view key = string();
      expect(':');
      visit(key);
      if (!goes_on('}')) return;
    }
  }
  /// Calls visit(index) for each element of the next value, an array.
  template <typename Visit>
  void array(Visit&& visit) {
    open('[');
    if (closes(']')) return;
    for (std::size_t index = 0;; ++index) {
      visit(index);
      if (!goes_on(']')) return;
    }
  }

  /// Nothing but space is left. Throws JsonError otherwise.
  void finish();
  /// Offset of the next byte.
  std::size_t byte() const { return static_cast<std::size_t>(next_ - begin_); }

 private:
  static constexpr int kMaxDepth = 200;

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void skip_space() {
    if (static_cast<unsigned char>(*next_) > ' ') return;
    // json.dump(indent=1) puts a line break and a space a level between two tokens.
    if (*next_ == '\n' && end_ - next_ > 8) {
      const std::uint64_t no_spaces = load_word(next_ + 1) ^ repeated(' ');
      next_ += no_spaces == 0 ? 9 : 1 + bytes_before(no_spaces);
    }
    while (*next_ == ' ' || *next_ == '\n' || *next_ == '\t' || *next_ == '\r') ++next_;
  }
  void open(char bracket) { expect(bracket); }
  bool closes(char bracket) {
    skip_space();
    if (*next_ != bracket) return false;
    ++next_;
    return true;
  }
  bool goes_on(char bracket) {
    skip_space();
    if (*next_ == ',') {
      ++next_;
      return true;
    }
    if (*next_ != bracket) fail_expecting(',', bracket);
    ++next_;
    return false;
  }
  void expect(char c) {
    skip_space();
    if (*next_ != c) fail_expecting(c);
    ++next_;
  }
  /// Steps over an integer; false, without a step, if the next value is none.
  bool skip_integer();
  std::string_view any_string();
  void word(std::string_view text);
  void skip_nested(int depth);
  std::string_view unescape(const char* start);
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_expecting(char c) const;
  [[noreturn]] void fail_expecting(char c, char other) const;

  const char* begin_;
  const char* next_;
  const char* end_;
  std::deque<std::string>& unescaped_;
};

}  // namespace trendprobe
