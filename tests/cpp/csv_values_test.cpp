#include "offline/csv_values.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

#include "offline/utf8_text.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(CsvValuesTest, NaNIsNeverMissingAndAnEmptyCellIsNeverNaN) {
  for (const char* cell : {"nan", "NaN", "-nan", " nan", "NAN"}) {
    const auto value = parse_number(cell);
    ASSERT_TRUE(value) << cell;
    EXPECT_TRUE(std::isnan(*value)) << cell;
    EXPECT_FALSE(is_missing(*value)) << cell;
  }
  for (const char* cell : {"", " ", "None", "null", "N/A", "NA"}) {
    const auto value = parse_number(cell);
    ASSERT_TRUE(value) << cell;
    EXPECT_TRUE(is_missing(*value)) << cell;
  }
}

TEST(CsvValuesTest, ReadsInfinitiesAndNumbersBeyondADouble) {
  EXPECT_EQ(parse_number("inf"), kInfinity);
  EXPECT_EQ(parse_number("-inf"), -kInfinity);
  EXPECT_EQ(parse_number("+inf"), kInfinity);
  EXPECT_EQ(parse_number("Infinity"), kInfinity);
  EXPECT_EQ(parse_number("1e400"), kInfinity);
  EXPECT_EQ(parse_number("-1e400"), -kInfinity);
  EXPECT_EQ(parse_number("1e-400"), 0.0);
}

TEST(CsvValuesTest, OtherTextIsNoNumber) {
  for (const char* cell : {"abc", "1x", "1 2", "--1", "+-1", "0x10", "1,5", "torch.float32", "."}) {
    EXPECT_FALSE(parse_number(cell)) << cell;
  }
}

TEST(CsvValuesTest, NumbersAreRoundedAsTheCLibraryDoes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    std::array<char, 64> text{};
    const double value = static_cast<double>(static_cast<std::int64_t>(random())) * 1e-13;
    if (i % 2 == 0) {
      std::snprintf(text.data(), text.size(), "%.12f", value);
    } else {
      std::snprintf(text.data(), text.size(), "%.*g", static_cast<int>(random() % 18), value);
    }
    ASSERT_EQ(parse_number(text.data()), std::strtod(text.data(), nullptr)) << text.data();
  }
  for (const char* text : {"0.1", "-0.0", "9007199254740993", "123456789012345678901234567890",
                           "2.2250738585072011e-308", "5e-324", "1.7976931348623157e308", "1e22",
                           "1e23", "8.41e21", "5e-23", ".5", "5."}) {
    ASSERT_EQ(parse_number(text), std::strtod(text, nullptr)) << text;
  }
}

TEST(CsvValuesTest, IntegersMayLookLikeFloats) {
  EXPECT_EQ(parse_integer("3", false), 3);
  EXPECT_EQ(parse_integer(" 3 ", false), 3);
  EXPECT_EQ(parse_integer("3.0", false), 3);
  EXPECT_EQ(parse_integer("-1", false), -1);
  EXPECT_EQ(parse_integer("1e3", false), 1000);
  EXPECT_EQ(parse_integer("3.7", false), std::nullopt);
  EXPECT_EQ(parse_integer("3.7", true), 3);
  EXPECT_EQ(parse_integer("1000000000000", false), 1'000'000'000'000);
  for (const char* text : {"", "nan", "inf", "abc", "3x", "1e300", "99999999999999999999"}) {
    EXPECT_EQ(parse_integer(text, true), std::nullopt) << text;
  }
}

TEST(Utf8TextTest, RepairsWhatIsNoUtf8) {
  const std::string replaced = "\xEF\xBF\xBD";
  for (const char* text : {"", "plain", "\xC3\xA4", "\xE6\xA8\xA1\xE5\x9D\x97", "\xF0\x9F\x98\x80",
                           "a long name that is more than eight bytes"}) {
    EXPECT_TRUE(is_text(text)) << text;
    EXPECT_EQ(repaired_text(text), text);
  }
  const auto repaired = [](std::string_view text) {
    EXPECT_FALSE(is_text(text));
    std::string result = repaired_text(text);
    EXPECT_TRUE(is_text(result));
    return result;
  };
  EXPECT_EQ(repaired("a\xFF"), "a" + replaced);
  EXPECT_EQ(repaired({"a\0b", 3}), "a" + replaced + "b");
  EXPECT_EQ(repaired("\xC3"), replaced);                                // cut
  EXPECT_EQ(repaired("\xC0\xAF"), replaced + replaced);                 // overlong
  EXPECT_EQ(repaired("\xED\xA0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(repaired("12345678\xF5\x80\x80\x80x"),
            "12345678" + replaced + replaced + replaced + replaced + "x");  // beyond U+10FFFF
}

}  // namespace
}  // namespace trendprobe
