#include "offline/csv_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Row = std::vector<std::string>;

/// A row and all that the reader says of it.
struct ReadRow {
  Row fields;
  std::size_t line = 0;
  bool is_terminated = false;
  bool is_damaged = false;
  std::uint64_t offset = 0;

  bool operator==(const ReadRow&) const = default;
};

std::ostream& operator<<(std::ostream& stream, const ReadRow& row) {
  stream << "line " << row.line << (row.is_terminated ? "" : " cut")
         << (row.is_damaged ? " damaged" : "") << " at " << row.offset << ":";
  for (const std::string& field : row.fields) stream << " <" << field << ">";
  return stream;
}

std::vector<ReadRow> read_all(CsvReader& reader) {
  std::vector<ReadRow> rows;
  std::vector<std::string_view> fields;
  while (reader.next(fields)) {
    rows.push_back({Row(fields.begin(), fields.end()), reader.line(), reader.is_terminated(),
                    reader.is_damaged(), reader.offset()});
  }
  EXPECT_FALSE(reader.next(fields));
  return rows;
}

std::vector<ReadRow> read_text(std::string_view text) {
  CsvReader reader(text);
  return read_all(reader);
}

/// Reads the text as if the file gave it `count` bytes at a time.
std::vector<ReadRow> read_in_pieces(std::string_view text, std::size_t count,
                                    std::size_t buffer_bytes) {
  std::size_t at = 0;
  CsvReader reader(
      [&](char* buffer, std::size_t size) {
        const std::size_t bytes = std::min({count, size, text.size() - at});
        std::copy_n(text.data() + at, bytes, buffer);
        at += bytes;
        return bytes;
      },
      buffer_bytes);
  return read_all(reader);
}

std::vector<Row> fields_of(std::string_view text) {
  std::vector<Row> rows;
  for (ReadRow& row : read_text(text)) rows.push_back(std::move(row.fields));
  return rows;
}

TEST(CsvReaderTest, ReadsRowsWithAnyLineBreak) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const std::string& text :
       {std::string("a,b\n1,2\n"), std::string("a,b\r\n1,2\r\n"), std::string("a,b\n1,2"),
        std::string("a,b\r\n1,2"), std::string("\n\na,b\n\n\r\n1,2\n\n"), mark + "a,b\n1,2\n"}) {
    EXPECT_THAT(fields_of(text), ElementsAre(Row{"a", "b"}, Row{"1", "2"})) << text;
  }
}

TEST(CsvReaderTest, AnEmptyTextHasNoRows) {
  for (const char* text : {"", "\n", "\r\n\r\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF\n"}) {
    EXPECT_THAT(fields_of(text), IsEmpty());
  }
}

TEST(CsvReaderTest, EmptyFieldsAreFields) {
  EXPECT_THAT(fields_of(",\n,,x\n\"\",\n"),
              ElementsAre(Row{"", ""}, Row{"", "", "x"}, Row{"", ""}));
}

TEST(CsvReaderTest, QuotedFieldsHoldCommasQuotesAndLineBreaks) {
  EXPECT_THAT(fields_of("x,\"[2, 16]\",y\n\"a\"\"b\",\"c\nd\"\r\ne,f\n"),
              ElementsAre(Row{"x", "[2, 16]", "y"}, Row{"a\"b", "c\nd"}, Row{"e", "f"}));
  // A quote inside a plain field is a character.
  EXPECT_THAT(fields_of("a\"b,c\"\n"), ElementsAre(Row{"a\"b", "c\""}));
}

TEST(CsvReaderTest, NamesTheLineThatARowBeginsAt) {
  const std::vector<ReadRow> rows = read_text("a\n\"b\nb\nb\"\n\nc\nd");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].line, 2U);
  EXPECT_EQ(rows[2].line, 6U);
  EXPECT_EQ(rows[3].line, 7U);
  EXPECT_EQ(rows[3].offset, 13U);
  EXPECT_TRUE(rows[2].is_terminated);
  EXPECT_FALSE(rows[3].is_terminated);
}

TEST(CsvReaderTest, AnUnclosedQuoteCostsOneLine) {
  const std::vector<ReadRow> rows = read_text("a,b\n\"1,2\n3,4\n5,6\n");
  EXPECT_THAT(
      rows,
      ElementsAre(ReadRow{{"a", "b"}, 1, true, false, 0}, ReadRow{{}, 2, true, true, 4},
                  ReadRow{{"3", "4"}, 3, true, false, 9}, ReadRow{{"5", "6"}, 4, true, false, 13}));
}

TEST(CsvReaderTest, TextBehindAClosingQuoteCostsOneLine) {
  EXPECT_THAT(read_text("\"a\"x,b\n1,2\n"),
              ElementsAre(ReadRow{{}, 1, true, true, 0}, ReadRow{{"1", "2"}, 2, true, false, 7}));
}

TEST(CsvReaderTest, AQuoteThatClosesFarAwayIsUnclosed) {
  std::string text = "a,\"b\n";
  for (int i = 0; i < 20000; ++i) text += "row," + std::to_string(i) + "\n";
  text += "x,\"y\"\n";
  const std::vector<ReadRow> rows = read_text(text);
  ASSERT_EQ(rows.size(), 20002U);
  EXPECT_TRUE(rows[0].is_damaged);
  EXPECT_EQ(rows[1].fields, (Row{"row", "0"}));
  EXPECT_EQ(rows.back().fields, (Row{"x", "y"}));
  EXPECT_EQ(rows.back().line, 20002U);
}

TEST(CsvReaderTest, KeepsNulBytesLongFieldsAndUnicode) {
  const std::string nul("a\0b", 3);
  const std::string longest(4000, 'n');
  const std::string unicode = "\xE6\xA8\xA1\xE5\x9D\x97 \xF0\x9F\x98\x80";
  EXPECT_THAT(fields_of(nul + "," + longest + "," + unicode + "\n"),
              ElementsAre(Row{nul, longest, unicode}));
}

TEST(CsvReaderTest, ARowThatDoesNotFitTheBufferIsDamaged) {
  const std::string text = "a,b\n" + std::string(1000, 'x') + "\nc,d\n";
  const std::vector<ReadRow> rows = read_in_pieces(text, 7, 64);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_TRUE(rows[1].is_damaged);
  EXPECT_THAT(rows[1].fields, IsEmpty());
  EXPECT_EQ(rows[2].fields, (Row{"c", "d"}));
  EXPECT_EQ(rows[2].offset, 1005U);
  EXPECT_EQ(rows[2].line, 3U);
}

// What was written by the rules of RFC 4180 comes back, in pieces of any size.
TEST(CsvReaderTest, ReadsBackRandomRows) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  constexpr std::string_view kBytes("ab,\"\r\n \xC3\xA4\0", 10);
  for (int round = 0; round < 500; ++round) {
    std::vector<Row> rows;
    std::string text = below(4) == 0 ? "\xEF\xBB\xBF" : "";
    const std::string line_break = below(2) == 0 ? "\n" : "\r\n";
    for (std::size_t r = 1 + below(6); r > 0; --r) {
      Row row;
      for (std::size_t f = 2 + below(4); f > 0; --f) {
        std::string field;
        for (std::size_t b = below(12); b > 0; --b) field += kBytes[below(kBytes.size())];
        const bool needs_quotes = field.find_first_of(",\"\r\n") != std::string::npos;
        if (!row.empty()) text += ',';
        if (needs_quotes || below(4) == 0) {
          text += '"';
          for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
          text += '"';
        } else {
          text += field;
        }
        row.push_back(std::move(field));
      }
      text += line_break;
      rows.push_back(std::move(row));
    }
    ASSERT_EQ(fields_of(text), rows) << text;
    for (const std::size_t piece : {std::size_t{1}, std::size_t{5}}) {
      ASSERT_EQ(read_in_pieces(text, piece, text.size() + 1), read_text(text)) << text;
    }
  }
}

TEST(CsvReaderTest, RandomBytesReadTheSameInPieces) {
  std::mt19937 random(2);
  constexpr std::string_view kBytes("a,\"\n\r\0\xFF", 7);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (std::size_t i = random() % 60; i > 0; --i) text += kBytes[random() % kBytes.size()];
    const std::vector<ReadRow> whole = read_text(text);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}}) {
      ASSERT_EQ(read_in_pieces(text, piece, text.size() + 1), whole) << text;
    }
    // Every line break is in a row or between two; none is counted twice.
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    if (!whole.empty()) {
      ASSERT_LE(whole.back().line, lines + 1);
    }
  }
}

}  // namespace
}  // namespace trendprobe
