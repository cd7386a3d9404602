#include "offline/csv_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

/// pandas' default words for a missing value.
constexpr std::array<std::string_view, 19> kMissingWords = {
    "",     "#N/A", "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A",  "NA",       "NULL", "NaN",     "None",     "n/a",  "nan",  "null"};

/// The largest integer up to which every integer is a double, and the largest power of ten that is
/// one: the quotient or product of two such is correctly rounded.
constexpr std::uint64_t kExactInteger = std::uint64_t{1} << 53;
constexpr std::array<double, 23> kPowersOfTen = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                 1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The common case: at most 18 digits, no large exponent. None if it is not that.
std::optional<double> parse_short_decimal(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const bool is_negative = at < end && *at == '-';
  if (is_negative) ++at;
  std::uint64_t digits = 0;
  const char* const whole = at;
  while (at < end && is_digit(*at)) digits = digits * 10 + static_cast<std::uint64_t>(*at++ - '0');
  std::ptrdiff_t count = at - whole;
  std::ptrdiff_t exponent = 0;
  if (at < end && *at == '.') {
    const char* const fraction = ++at;
    while (at < end && is_digit(*at)) {
      digits = digits * 10 + static_cast<std::uint64_t>(*at++ - '0');
    }
    exponent = fraction - at;
    count -= exponent;
  }
  if (count == 0 || count > 18) return std::nullopt;
  if (at < end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool is_small = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) ++at;
    if (at == end || end - at > 3) return std::nullopt;
    std::ptrdiff_t value = 0;
    while (at < end && is_digit(*at)) value = value * 10 + (*at++ - '0');
    exponent += is_small ? -value : value;
  }
  if (at != end || digits > kExactInteger || exponent < -22 || exponent > 22) return std::nullopt;
  const auto number = static_cast<double>(digits);
  const double value = exponent < 0 ? number / kPowersOfTen[static_cast<std::size_t>(-exponent)]
                                    : number * kPowersOfTen[static_cast<std::size_t>(exponent)];
  return is_negative ? -value : value;
}

/// What a number that is no double is nearest to: zero or infinity.
double beyond_double(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const std::size_t e = text.find_first_of("eE");
  const bool is_small = e == std::string_view::npos ? text.starts_with('0') || text.starts_with('.')
                                                    : text.substr(e + 1).starts_with('-');
  const double value = is_small ? 0.0 : std::numeric_limits<double>::infinity();
  return is_negative ? -value : value;
}

}  // namespace

bool is_missing_cell(std::string_view cell) {
  return std::find(kMissingWords.begin(), kMissingWords.end(), cell) != kMissingWords.end();
}

std::optional<double> parse_number(std::string_view cell) {
  if (const auto value = parse_short_decimal(cell)) return value;
  std::string_view text = without_blanks(cell);
  double value = 0;
  const char* const end = text.data() + text.size();
  const char* const start = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [stop, error] = std::from_chars(start, end, value);
  if (stop == end && !text.empty() && !text.starts_with("+-")) {
    if (error == std::errc()) return canonical(value);
    if (error == std::errc::result_out_of_range) {
      return beyond_double({start, static_cast<std::size_t>(end - start)});
    }
  }
  if (is_missing_cell(text)) return kMissing;
  return std::nullopt;
}

std::optional<std::int64_t> parse_integer(std::string_view cell, bool truncate) {
  const std::string_view text = without_blanks(cell);
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  const std::optional<double> number = parse_number(text);
  // An infinity, a NaN and what no std::int64_t holds fail the comparison.
  if (!number || !(std::fabs(*number) < 9.2e18)) return std::nullopt;
  if (!truncate && std::trunc(*number) != *number) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

}  // namespace trendprobe
