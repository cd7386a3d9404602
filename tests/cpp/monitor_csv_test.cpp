#include "offline/monitor_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cpp/temporary_directory.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What was read of a file: "stage|name|step|micro-step|value|value" a row, and what was reported:
/// "severity location: what; kept".
struct ReadFile {
  std::vector<std::string> statistics;
  std::vector<std::string> rows;
  std::vector<std::string> issues;
};

std::string text_of(double value) {
  if (is_missing(value)) return "missing";
  if (std::isnan(value)) return "NaN";
  std::ostringstream text;
  text << value;
  return text.str();
}

class MonitorCsvTest : public testing::Test {
 protected:
  ReadFile read(std::string_view text, const MonitorCsvOptions& options = {}) {
    std::ofstream(file(), std::ios::binary) << text;
    return read_file(options);
  }

  ReadFile read_file(const MonitorCsvOptions& options = {}) const {
    ReadFile result;
    Diagnostics diagnostics;
    {
      MonitorCsv csv(file(), options, diagnostics);
      result.statistics = csv.statistics();
      MonitorCsv::Row row;
      while (csv.next(row)) {
        std::ostringstream line;
        line << row.vpp_stage << '|' << row.name << '|' << row.step << '|' << row.micro_step;
        std::vector<double> values;
        const bool is_measured = csv.append_values(values);
        EXPECT_EQ(values.size(), is_measured ? result.statistics.size() : 0);
        if (!is_measured) line << "|not measured";
        for (const double value : values) line << '|' << text_of(value);
        result.rows.push_back(line.str());
      }
      EXPECT_FALSE(csv.next(row));
    }
    for (const Issue& issue : diagnostics.issues()) {
      EXPECT_EQ(issue.path, file().string());
      result.issues.push_back(std::string(to_string(issue.severity)) + " " + issue.location + ": " +
                              issue.what + "; " + issue.kept);
    }
    return result;
  }

  fs::path file() const { return directory_ / "actv_0-1.csv"; }

  TemporaryDirectory directory_;
};

TEST_F(MonitorCsvTest, ReadsWhatMsProbeWrites) {
  const ReadFile found = read(
      "vpp_stage,name,step,micro_step,norm,min,max,mean,id,shape,dtype\n"
      "0,embed.input,0,1,181.5,0.0,59.0,26.75,nan,\"[2, 16]\",torch.int64\n"
      "1,.output,1,0,nan,-inf,inf,,nan,[],torch.float32\n");
  EXPECT_THAT(found.statistics, ElementsAre("norm", "min", "max", "mean"));
  EXPECT_THAT(found.rows, ElementsAre("0|embed.input|0|1|181.5|0|59|26.75",
                                      "1|.output|1|0|NaN|-inf|inf|missing"));
  EXPECT_THAT(found.issues, IsEmpty());
}

TEST_F(MonitorCsvTest, TheStatisticsComeInMsProbesOrder) {
  const ReadFile found = read("vpp_stage,name,step,std_x,mean,norm\n0,a,0,1,2,3\n");
  EXPECT_THAT(found.statistics, ElementsAre("norm", "mean", "std_x"));
  EXPECT_THAT(found.rows, ElementsAre("0|a|0|0|3|2|1"));
}

TEST_F(MonitorCsvTest, ByteOrderMarkAndCarriageReturnsChangeNothing) {
  EXPECT_THAT(read("\xEF\xBB\xBFvpp_stage,name,step,norm\r\n0,a,0,1\r\n").rows,
              ElementsAre("0|a|0|0|1"));
}

TEST_F(MonitorCsvTest, AFileThatCantBeUsedIsSkippedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is empty (0 bytes)"},
      {"\n\n", "has no header"},
      {"vpp_stage,step,norm\n0,0,1\n", "has a header without the column name"},
      {"name,step,norm\na,0,1\n", "has a header without the column vpp_stage"},
      {"vpp_stage,name,norm\n0,a,1\n", "has a header without the column step"},
      {"vpp_stage,name,step,shape\n0,a,0,[]\n", "has a header without the column of a statistic"},
      {"\"vpp_stage,name,step,norm\n0,a,0,1\n", "has a header with a quote that is not closed"},
      {std::string(5000, '\0'), "has a header without the column name"},
  };
  for (const auto& [text, what] : cases) {
    const ReadFile found = read(text);
    EXPECT_THAT(found.rows, IsEmpty());
    EXPECT_THAT(found.issues, ElementsAre("skipped : " + what + "; nothing of this file"));
  }
  fs::remove(file());
  EXPECT_THAT(read_file().issues, ElementsAre(HasSubstr("can't be read: No such file")));
  fs::create_directory(file());
  EXPECT_THAT(read_file().issues, ElementsAre(HasSubstr("can't be read: Is a directory")));
}

TEST_F(MonitorCsvTest, AHeaderWithoutRowsIsWorthANotice) {
  EXPECT_THAT(read("vpp_stage,name,step,norm\n").issues,
              ElementsAre("notice : has a header but no rows; "));
}

TEST_F(MonitorCsvTest, UnknownColumnsAreNamed) {
  const ReadFile found = read("vpp_stage,name,step,kurtosis,norm,\xFF\n0,a,0,7,1,2\n");
  EXPECT_THAT(found.rows, ElementsAre("0|a|0|0|1"));
  EXPECT_THAT(found.issues, ElementsAre("notice : has columns that are no statistic known here, "
                                        "left out: kurtosis, \xEF\xBF\xBD; "));
}

TEST_F(MonitorCsvTest, EveryKindOfBadRowIsReportedOnceWithItsFirstLine) {
  const ReadFile found = read(
      "vpp_stage,name,step,micro_step,norm\n"
      "0,good,0,0,1\n"
      "0,short,0\n"
      "x,stage,0,0,1\n"
      "0,step,nan,0,1\n"
      "0,step,later,0,1\n"
      "0,negative,-1,0,1\n"
      "0,huge,99999999999999999,0,1\n"
      "0,micro,0,-1,1\n"
      "0,micro,0,1e9,1\n"
      "0,long,0,0,1,1\n"
      "0,\"quote,0,0,1\n"
      "0,value,0,0,abc\n"
      "0,good,1,0,2\n");
  EXPECT_THAT(found.rows, ElementsAre("0|good|0|0|1", "0|value|0|0|missing", "0|good|1|0|2"));
  EXPECT_THAT(
      found.issues,
      testing::UnorderedElementsAre(
          "repaired line 3: has fewer fields than the header; the other rows of this file",
          "repaired line 4: has a vpp_stage that is no number; the other rows of this file",
          "repaired line 5: has a step that is no number (the first of 2 such); the other rows of "
          "this file",
          "repaired line 7: has a negative step; the other rows of this file",
          "repaired line 8: has a step beyond 2^53; the other rows of this file",
          "repaired line 9: has a negative micro_step; the other rows of this file",
          "repaired line 10: has a micro_step beyond 2^20; the other rows of this file",
          "repaired line 11: has more fields than the header; the other rows of this file",
          "repaired line 12: has a quote that is not closed, or text behind a closing one; the "
          "other rows of this file",
          "repaired line 13: has a value that is no number: \"abc\"; the row, without this value"));
}

TEST_F(MonitorCsvTest, StepsThatTheNameDoesNotHaveAreKeptAndNamed) {
  MonitorCsvOptions options;
  options.last_step = 1;
  const ReadFile found = read("vpp_stage,name,step,norm\n0,a,1000000000000,1\n", options);
  EXPECT_THAT(found.rows, ElementsAre("0|a|1000000000000|0|1"));
  EXPECT_THAT(found.issues,
              ElementsAre("notice line 2: has a step that is not among those in the file's name; "
                          "the row"));
}

TEST_F(MonitorCsvTest, AnArgumentThatIsNoTensorWasNotMeasured) {
  const std::string text =
      "vpp_stage,name,step,norm,max,shape,dtype\n0,a,0,nan,nan,nan,nan\n0,b,0,1,2,[3],torch.half\n"
      "0,c,0,,,,\n";
  const ReadFile found = read(text);
  EXPECT_THAT(found.rows,
              ElementsAre("0|a|0|0|not measured", "0|b|0|0|1|2", "0|c|0|0|not measured"));
  EXPECT_THAT(found.issues, IsEmpty());
  // msProbe makes records of them.
  EXPECT_THAT(read(text, {.as_msprobe = true}).rows,
              ElementsAre("0|a|0|0|NaN|NaN", "0|b|0|0|1|2", "0|c|0|0|missing|missing"));
}

TEST_F(MonitorCsvTest, ANaNOfATensorIsNeverLeftOut) {
  EXPECT_THAT(
      read("vpp_stage,name,step,norm,max,dtype\n0,a,0,nan,nan,torch.half\n"
           "0,b,0,nan,2,nan\n0,c,0,,2,nan\n0,d,0,x,nan,nan\n")
          .rows,
      ElementsAre("0|a|0|0|NaN|NaN", "0|b|0|0|NaN|2", "0|c|0|0|missing|2", "0|d|0|0|missing|NaN"));
  EXPECT_THAT(read("vpp_stage,name,step,norm,max\n0,a,0,nan,nan\n").rows,
              ElementsAre("0|a|0|0|NaN|NaN"));
}

TEST_F(MonitorCsvTest, NamesMayBeAnyText) {
  const std::string longest(4000, 'n');
  const ReadFile found =
      read("vpp_stage,name,step,norm\n0,\"a,\"\"b\"\"\",0,1\n0,\xE6\xA8\xA1 '/,0,1\n0," + longest +
           ",0,1\n0,,0,1\n0,x\xFFy,0,1\n0,nan,0,1\n");
  EXPECT_THAT(found.rows,
              ElementsAre("0|a,\"b\"|0|0|1", "0|\xE6\xA8\xA1 '/|0|0|1", "0|" + longest + "|0|0|1",
                          "0||0|0|1", "0|x\xEF\xBF\xBDy|0|0|1", "0|nan|0|0|1"));
  EXPECT_THAT(found.issues,
              ElementsAre("repaired line 6: has a name that is no UTF-8: \"x\xEF\xBF\xBDy\"; the "
                          "row, with U+FFFD for each bad byte"));
}

TEST_F(MonitorCsvTest, ABlockOfNulBytesIsNamedAndTheRestKept) {
  // A file on a disk that lost power: blocks that were never written read as zeros.
  const ReadFile found =
      read("vpp_stage,name,step,norm\n0,a,0,1\n" + std::string(5000, '\0') + "\n0,b,0,2\n");
  EXPECT_THAT(found.rows, ElementsAre("0|a|0|0|1", "0|b|0|0|2"));
  EXPECT_THAT(found.issues,
              ElementsAre("repaired line 3: holds NUL bytes; the other rows of this file"));
}

TEST_F(MonitorCsvTest, OfARowThatWasCutNothingIsGuessed) {
  const std::string header = "vpp_stage,name,step,norm\n";
  const std::string rows = "0,a,0,1.25\n0,b,0,3.25\n";
  for (std::size_t size = 0; size <= rows.size(); ++size) {
    const ReadFile found = read(header + rows.substr(0, size));
    std::vector<std::string> expected;
    if (size >= 11) expected.emplace_back("0|a|0|0|1.25");
    if (size >= 22) expected.emplace_back("0|b|0|0|3.25");
    EXPECT_EQ(found.rows, expected) << size;
    if (size % 11 == 0) continue;
    EXPECT_THAT(found.issues, ElementsAre("repaired line " + std::to_string(size < 11 ? 2 : 3) +
                                          ": is cut; the other rows of this file"))
        << size;
  }
}

TEST_F(MonitorCsvTest, AsMsProbeShortRowsAndFractionsAreTaken) {
  MonitorCsvOptions options;
  options.as_msprobe = true;
  const ReadFile found =
      read("vpp_stage,name,step,norm,max\n0,,1.9,1,2\n0,None,1,1\n0,b,1,1,2", options);
  EXPECT_THAT(found.rows, ElementsAre("0|nan|1|0|1|2", "0|nan|1|0|1|missing", "0|b|1|0|1|2"));
}

}  // namespace
}  // namespace trendprobe
