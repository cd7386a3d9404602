#include "offline/json_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "offline/file_contents.h"

namespace trendprobe {
namespace {

using Json = nlohmann::json;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kCut = "the text ends in the middle";
constexpr int kMaxDepth = 200;

/// The next value as a tree; of two members of one name the last counts, as in nlohmann's.
Json value_of(JsonCursor& json) {
  switch (json.kind()) {
    case JsonCursor::Kind::kObject: {
      Json object = Json::object();
      json.object([&](std::string_view key) {
        const std::string name(key);
        object[name] = value_of(json);
      });
      return object;
    }
    case JsonCursor::Kind::kArray: {
      Json array = Json::array();
      json.array([&](std::size_t index) {
        EXPECT_EQ(index, array.size());
        array.push_back(value_of(json));
      });
      return array;
    }
    case JsonCursor::Kind::kString:
      return std::string(json.string());
    case JsonCursor::Kind::kNumber:
      return json.number();
    case JsonCursor::Kind::kTrue:
      json.skip();
      return true;
    case JsonCursor::Kind::kFalse:
      json.skip();
      return false;
    case JsonCursor::Kind::kNull:
      json.skip();
      return nullptr;
  }
  return {};
}

/// The whole document as a tree; skip() must agree on where it ends.
Json parse(std::string_view text) {
  const FileContents contents(text);
  std::deque<std::string> unescaped;
  JsonCursor json(contents.text(), unescaped);
  Json value = value_of(json);
  JsonCursor skipping(contents.text(), unescaped);
  skipping.skip();
  EXPECT_EQ(skipping.byte(), json.byte()) << text;
  json.finish();
  return value;
}

/// What is wrong with a document, and where.
struct Fault {
  std::size_t byte = 0;
  std::string what;
};

std::optional<Fault> fault_of(std::string_view text) {
  try {
    parse(text);
    return std::nullopt;
  } catch (const JsonError& error) {
    return Fault{error.byte(), error.what()};
  }
}

/// Integers of a tree as the doubles that a cursor reads.
Json with_doubles(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_structured()) return value;
  Json result = value;
  for (Json& member : result) member = with_doubles(member);
  return result;
}

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }

  Json value(int depth) {
    switch (below(depth > 0 ? 9 : 7)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return text();
      case 3:
        return static_cast<std::int64_t>(random_());
      case 4:
        return random_();
      case 5:
        return static_cast<double>(static_cast<std::int64_t>(random_())) *
               std::pow(10.0, static_cast<double>(below(60)) - 40);
      case 6:
        return static_cast<std::int64_t>(below(100)) - 50;
      case 7: {
        Json array = Json::array();
        for (std::size_t i = below(5); i > 0; --i) array.push_back(value(depth - 1));
        return array;
      }
      default: {
        Json object = Json::object();
        for (std::size_t i = below(5); i > 0; --i) object[text()] = value(depth - 1);
        return object;
      }
    }
  }

  std::string text() {
    static const std::array<std::string, 12> kPieces = {
        "a", "Module.", "\"",       "\\",           "\n",  "\t",
        "/", "\x01",    "\xC3\xA4", "\xE6\xA2\xAF", "\"}", "\xF0\x9F\x98\x80"};
    std::string result;
    for (std::size_t i = below(6); i > 0; --i) result += kPieces[below(kPieces.size())];
    return result;
  }

 private:
  std::mt19937_64 random_;
};

TEST(JsonCursorTest, ReadsWhatAnotherLibraryWrites) {
  Generator generator(1);
  for (int i = 0; i < 3000; ++i) {
    const Json document = Json::array({generator.value(5)});
    const int indent = static_cast<int>(generator.below(4)) - 1;
    const std::string text = document.dump(indent, ' ', generator.below(2) == 0);
    ASSERT_EQ(parse(text), with_doubles(document)) << text;
  }
}

TEST(JsonCursorTest, AgreesWithAnotherLibraryOnDamagedDocuments) {
  constexpr std::string_view kBytes = "{}[],:\"\\0123456789.-+eEtrufalsn \n/x";
  Generator generator(2);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = Json::array({generator.value(3)}).dump(-1, ' ', true);
    for (std::size_t k = generator.below(3); k > 0 && !text.empty(); --k) {
      const std::size_t at = generator.below(text.size());
      const char byte = kBytes[generator.below(kBytes.size())];
      switch (generator.below(3)) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        default:
          text.erase(at, 1);
      }
    }
    // A number that ends the text may have been cut: the cursor says so.
    if (text.empty() || (text.back() >= '0' && text.back() <= '9')) continue;
    const Json theirs = Json::parse(text, nullptr, false);
    const std::optional<Fault> fault = fault_of(text);
    if (!theirs.is_discarded()) {
      ASSERT_FALSE(fault) << text << "\nbyte " << fault->byte << ": " << fault->what;
      ASSERT_EQ(parse(text), with_doubles(theirs)) << text;
      ++accepted;
      continue;
    }
    if (fault) {
      ASSERT_LE(fault->byte, text.size());
      continue;
    }
    // What the cursor takes and JSON does not: bytes of control inside a string, half a surrogate
    // pair, a number beyond a double, "1.e5".
    bool is_known = text.find("\\u") != std::string::npos || text.find('\n') != std::string::npos ||
                    text.find(".e") != std::string::npos || text.find(".E") != std::string::npos;
    try {
      is_known = is_known || Json::parse(text).is_null();
    } catch (const Json::out_of_range&) {
      is_known = true;
    } catch (const Json::parse_error&) {
      EXPECT_TRUE(is_known);
    }
    ASSERT_TRUE(is_known) << text;
  }
  EXPECT_GT(accepted, 2000);
}

TEST(JsonCursorTest, ReadsNumbersInEveryForm) {
  const std::vector<std::pair<std::string, double>> numbers = {
      {"0", 0},
      {"-0", -0.0},
      {"-0.0", -0.0},
      {"1", 1},
      {"-1", -1},
      {"1.5e3", 1500},
      {"1E+2", 100},
      {"1e-2", 0.01},
      {"0.1", 0.1},
      {"123456789012345678901234567890", 123456789012345678901234567890.0},
      {"9007199254740993", 9007199254740992.0},
      {"2.2250738585072011e-308", 2.2250738585072011e-308},
      {"5e-324", 5e-324},
      {"1.7976931348623157e308", 1.7976931348623157e308},
      {"1e400", std::numeric_limits<double>::infinity()},
      {"-1e400", -std::numeric_limits<double>::infinity()},
      {"1e-400", 0},
      {"0.0000000000000000000000000000000000000000000001", 1e-46},
      {"3.0000000000000004440892098500626", 3.0000000000000004},
      {"Infinity", std::numeric_limits<double>::infinity()},
      {"-Infinity", -std::numeric_limits<double>::infinity()},
  };
  for (const auto& [text, value] : numbers) {
    for (const char* end : {"", " ", ",", "]"}) {
      const std::string array = "[" + text + end;
      const FileContents contents{std::string_view(array)};
      std::deque<std::string> unescaped;
      JsonCursor json(contents.text().substr(1), unescaped);
      EXPECT_EQ(json.kind(), JsonCursor::Kind::kNumber) << array;
      if (*end == '\0' && std::isdigit(static_cast<unsigned char>(text.back())) != 0) {
        EXPECT_THROW(json.number(), JsonError) << "more digits may have followed";
        continue;
      }
      const double found = json.number();
      EXPECT_EQ(found, value) << array;
      EXPECT_EQ(std::signbit(found), std::signbit(value)) << array;
    }
  }
  EXPECT_TRUE(std::isnan(parse("[NaN]")[0].get<double>()));
}

TEST(JsonCursorTest, RejectsWhatIsNoNumber) {
  for (const char* text :
       {"-",    "+1",  ".5",  "-.5", "1.",      "01",       "-01", "1e",   "1e+",   "-inf",
        "-nan", "nan", "inf", "Nan", "Infinit", "-Infinit", "--1", "0x10", "1_000", "1,5e"}) {
    const auto fault = fault_of("[" + std::string(text) + " ]");
    ASSERT_TRUE(fault) << text;
    EXPECT_THAT(fault->what, HasSubstr("expected")) << text;
    EXPECT_LE(fault->byte, std::string_view(text).size() + 1);
  }
}

TEST(JsonCursorTest, ReadsEscapes) {
  EXPECT_EQ(parse(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(parse(R"("\u0041\u00e4\u68AF\uD83D\uDE00")"), "A\xC3\xA4\xE6\xA2\xAF\xF0\x9F\x98\x80");
  EXPECT_EQ(parse(R"("\u0000")"), "\xEF\xBF\xBD");
  for (const char* text : {R"("\x")", R"("\u12")", R"("\u12G4")", R"("\u+123")", R"("\)"}) {
    EXPECT_TRUE(fault_of(text)) << text;
  }
}

TEST(JsonCursorTest, AHalfSurrogatePairIsTheReplacementCharacter) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(parse(R"("\ud83d")"), replaced);
  EXPECT_EQ(parse(R"("\ude00x")"), replaced + "x");
  EXPECT_EQ(parse(R"("\ud83d\ud83d\ude00")"), replaced + "\xF0\x9F\x98\x80");
  EXPECT_EQ(parse(R"("\ud83dx\ude00")"), replaced + "x" + replaced);
  EXPECT_EQ(parse(R"("\ud83d\n")"), replaced + "\n");
}

TEST(JsonCursorTest, StringsWithEscapesOutliveTheCursor) {
  const FileContents contents(std::string_view(R"(["a\n1", "b", "c\n2"])"));
  std::deque<std::string> unescaped;
  std::vector<std::string_view> strings;
  {
    JsonCursor json(contents.text(), unescaped);
    json.array([&](std::size_t) { strings.push_back(json.string()); });
  }
  EXPECT_THAT(strings, ElementsAre("a\n1", "b", "c\n2"));
  EXPECT_EQ(unescaped.size(), 2U);
}

TEST(JsonCursorTest, VisitsMembersInTheirOrderAndTwice) {
  const FileContents contents(std::string_view(R"({"b": 1, "a": {}, "b": [2, {"c": null}]})"));
  std::deque<std::string> unescaped;
  JsonCursor json(contents.text(), unescaped);
  std::vector<std::string_view> keys;
  json.object([&](std::string_view key) {
    keys.push_back(key);
    json.skip();
  });
  json.finish();
  EXPECT_THAT(keys, ElementsAre("b", "a", "b"));
}

TEST(JsonCursorTest, ACutDocumentIsAlwaysCalledCut) {
  const std::string text =
      "{\"n\": [0, -1.5e+10, NaN, Infinity, -Infinity, true, false, null],\n"
      " \"s\\u00e4\\ud83d\\ude00\": \"a\\\"b\\\\\\u0041\", \"o\": {\"x\": {}, \"y\": [[], {}]}}";
  ASSERT_FALSE(fault_of(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    const auto fault = fault_of(text.substr(0, size));
    ASSERT_TRUE(fault) << size;
    EXPECT_EQ(fault->what, kCut) << text.substr(0, size);
    EXPECT_EQ(fault->byte, size);
  }
}

TEST(JsonCursorTest, ANulByteIsNoEnd) {
  for (const std::string& text : {std::string("[1,\0 2]", 7), std::string("[1\0]", 4)}) {
    const auto fault = fault_of(text);
    ASSERT_TRUE(fault);
    EXPECT_NE(fault->what, kCut);
    EXPECT_EQ(text[fault->byte], '\0');
  }
  EXPECT_EQ(parse(std::string("\"a\0b\"", 5)), std::string("a\0b", 3));
}

TEST(JsonCursorTest, WhatFollowsTheDocumentIsAFault) {
  EXPECT_EQ(fault_of("{} {}")->byte, 3U);
  EXPECT_EQ(fault_of("1 x")->byte, 2U);
  EXPECT_FALSE(fault_of(" {} \r\n\t"));
  EXPECT_FALSE(fault_of("\xEF\xBB\xBF{}"));
}

TEST(JsonCursorTest, DeepNestingIsAFaultAndNoOverflow) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  const auto skip = [](const std::string& text) {
    const FileContents contents{std::string_view(text)};
    std::deque<std::string> unescaped;
    JsonCursor json(contents.text(), unescaped);
    json.skip();
    json.finish();
  };
  EXPECT_NO_THROW(skip(nested(kMaxDepth)));
  for (const std::string& text :
       {nested(kMaxDepth + 2), nested(1'000'000), std::string(1'000'000, '[')}) {
    try {
      skip(text);
      ADD_FAILURE() << "no fault";
    } catch (const JsonError& error) {
      EXPECT_THAT(error.what(), HasSubstr("nested deeper than 200"));
      EXPECT_LE(error.byte(), static_cast<std::size_t>(kMaxDepth) + 2);
    }
  }
}

TEST(JsonCursorTest, AskingForAnotherKindIsAFault) {
  const FileContents contents(std::string_view("[1]"));
  std::deque<std::string> unescaped;
  JsonCursor json(contents.text(), unescaped);
  EXPECT_THROW(json.string(), JsonError);
  EXPECT_THROW(json.number(), JsonError);
  EXPECT_THROW(json.object([](std::string_view) {}), JsonError);
  EXPECT_EQ(json.byte(), 0U);
  EXPECT_THAT(fault_of("{1: 2}")->what, AnyOf("a string was expected"));
  EXPECT_THAT(fault_of(R"({"a" 1})")->what, "':' was expected");
  EXPECT_THAT(fault_of("[1 2]")->what, "',' or ']' was expected");
  EXPECT_THAT(fault_of("[1,]")->what, "a value was expected");
}

}  // namespace
}  // namespace trendprobe
