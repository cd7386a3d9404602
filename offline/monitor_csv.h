// The rows of one CSV file of msProbe's TrainerMon or TrainerMonitorV2, checked, and what is wrong
// with the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/csv_reader.h"
#include "offline/diagnostics.h"
#include "offline/file_range.h"

namespace trendprobe {

/// A part of a file that begins and ends with a row.
struct MonitorCsvPart {
  /// 0 = all from the header on.
  std::uint64_t begin = 0;
  std::uint64_t end = UINT64_MAX;
  /// The line that the part begins with; used where begin is not 0.
  std::size_t first_line = 1;
};

struct MonitorCsvOptions {
  /// Read as pandas and msProbe's data2db do: no step is step 0, fractions are cut off, a row that
  /// is too short goes on with missing values.
  bool as_msprobe = false;
  /// The steps in the file's name: others are worth a notice.
  std::int64_t first_step = 0;
  std::int64_t last_step = INT64_MAX;
  /// A file of TrainerMonitorV2: names are in the column module_name, and there is a column scope.
  bool is_v2 = false;
};

/// Belongs to one thread. Bad input is reported to Diagnostics once a kind of fault, with its first
/// line and its number of rows, when the last row was read.
class MonitorCsv {
 public:
  struct Row {
    std::string_view name;  // valid UTF-8, without NUL; until the next call of next()
    std::int32_t vpp_stage = 0;
    std::int64_t step = 0;
    std::int32_t micro_step = 0;
    /// Empty but in files of TrainerMonitorV2. As `name`.
    std::string_view scope;
  };

  /// Opens the file and reads its header. `diagnostics` is borrowed.
  MonitorCsv(const std::filesystem::path& path, const MonitorCsvOptions& options,
             Diagnostics& diagnostics, const MonitorCsvPart& part = {});
  MonitorCsv(const MonitorCsv&) = delete;
  MonitorCsv& operator=(const MonitorCsv&) = delete;

  /// The statistics that the file has, in the order of trend_statistics(). Empty if the file can't
  /// be used; next() is false then.
  const std::vector<std::string>& statistics() const { return statistics_; }

  /// The next good row. False at the end.
  bool next(Row& row);
  /// Appends the row's values in the order of statistics(). A number that can't be read is missing.
  /// False, and nothing appended, for a row that says that there was nothing to measure: an
  /// argument that is no tensor.
  bool append_values(std::vector<double>& values);
  /// Counts the current row among those with this fault. The texts must outlive the object.
  void note(Severity severity, std::string_view what, std::string_view kept) {
    count_fault(severity, what, kept, {});
  }

  /// Where the current row is.
  std::uint64_t offset() const { return part_.begin + reader_->offset(); }
  std::size_t line() const;

 private:
  struct Fault {
    Severity severity;
    std::string_view what;
    std::string_view kept;
    std::string example;
    std::size_t line;
    std::size_t rows;
  };
  /// What is wrong with a row that can't be used.
  using RowFault = const char*;

  void open(const std::filesystem::path& path);
  void read_header();
  RowFault read_row(Row& row);
  RowFault read_row_of_wrong_length();
  void skip_file(std::string what);
  void count_fault(Severity severity, std::string_view what, std::string_view kept,
                   std::string_view example);
  void report();

  std::string path_;
  MonitorCsvOptions options_;
  MonitorCsvPart part_;
  Diagnostics& diagnostics_;
  std::optional<FileRange> file_;
  std::optional<CsvReader> reader_;

  std::size_t columns_ = 0;
  std::size_t name_column_ = 0;
  std::size_t vpp_stage_column_ = 0;
  std::optional<std::size_t> step_column_;
  std::optional<std::size_t> micro_step_column_;
  std::optional<std::size_t> dtype_column_;
  std::optional<std::size_t> scope_column_;
  std::size_t last_needed_column_ = 0;
  std::vector<std::size_t> statistic_columns_;
  std::vector<std::string> statistics_;

  std::vector<std::string_view> fields_;
  std::string repaired_name_;
  std::string repaired_scope_;
  std::size_t rows_ = 0;
  std::vector<Fault> faults_;
};

}  // namespace trendprobe
