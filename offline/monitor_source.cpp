#include "offline/monitor_source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "offline/csv_reader.h"
#include "offline/directory_listing.h"
#include "offline/file_contents.h"
#include "offline/parallel_for.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

// Data2DBConst of msProbe 26.2.0; the order of the statistics is that of its trend_data.
constexpr std::array<std::string_view, 9> kMetrics = {
    "actv",         "actv_grad",    "exp_avg",       "exp_avg_sq", "grad_unreduced",
    "grad_reduced", "param_origin", "param_updated", "other"};
constexpr std::array<std::string_view, 14> kStatistics = {
    "norm",        "min", "max",         "zeros", "nans",     "mean",  "entropy",
    "softmax_max", "sr",  "kernel_norm", "std_x", "jacobian", "proxy", "token_similarity"};
// Columns that are no statistics.
constexpr std::array<std::string_view, 7> kOtherColumns = {
    "vpp_stage", "name", "step", "micro_step", "id", "shape", "dtype"};
constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;
constexpr std::int32_t kMaxMicroStep = 1 << 20;

template <std::size_t N>
std::optional<std::size_t> index_in(const std::array<std::string_view, N>& list,
                                    std::string_view word) {
  const auto found = std::find(list.begin(), list.end(), word);
  if (found == list.end()) return std::nullopt;
  return static_cast<std::size_t>(found - list.begin());
}

std::optional<std::int64_t> parse_digits(std::string_view text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The seconds since the start of a leap year that a time such as Dec03_21-34-40 means. None for
/// another form.
std::optional<std::int64_t> seconds_of_year(std::string_view time) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  constexpr std::array<int, 12> kDaysBefore = {0,   31,  60,  91,  121, 152,
                                               182, 213, 244, 274, 305, 335};
  if (time.size() != 14 || time[5] != '_' || time[8] != '-' || time[11] != '-') return std::nullopt;
  const std::size_t month = kMonths.find(time.substr(0, 3));
  const auto day = parse_digits(time.substr(3, 2));
  const auto hour = parse_digits(time.substr(6, 2));
  const auto minute = parse_digits(time.substr(9, 2));
  const auto second = parse_digits(time.substr(12, 2));
  if (month == std::string_view::npos || month % 3 != 0 || !day || !hour || !minute || !second) {
    return std::nullopt;
  }
  return ((kDaysBefore[month / 3] + *day) * 24 + *hour) * 3600 + *minute * 60 + *second;
}

/// A directory `<time>-rank<R>-<id>`.
struct RankDirectory {
  std::int32_t rank = 0;
  /// When its process started; none where the name does not tell.
  std::optional<std::int64_t> seconds_of_year;
  fs::path path;
};

/// msProbe's pattern ([\w-]{0,20})-rank(\d{1,5})- at the start of a name.
std::optional<RankDirectory> parse_rank_directory(const fs::path& path) {
  const std::string name = path.filename();
  // The pattern's first part is greedy: of several "-rank<R>-" the last that fits counts.
  for (std::size_t at = name.rfind("-rank", 20); at != std::string::npos;
       at = at == 0 ? std::string::npos : name.rfind("-rank", at - 1)) {
    const std::size_t digits = at + 5;
    const std::size_t end = name.find_first_not_of("0123456789", digits);
    const bool is_word = std::all_of(
        name.begin(), name.begin() + static_cast<std::ptrdiff_t>(at),
        [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c >= 0x80; });
    if (is_word && end != std::string::npos && name[end] == '-' && end > digits &&
        end - digits <= 5) {
      const std::string_view text(name);
      return RankDirectory{
          static_cast<std::int32_t>(*parse_digits(text.substr(digits, end - digits))),
          seconds_of_year(text.substr(0, at)), path};
    }
  }
  return std::nullopt;
}

/// A file `<metric>_<first>-<last>.csv`.
struct MonitorFile {
  std::size_t metric = 0;  // index into kMetrics
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  fs::path path;
};

std::optional<MonitorFile> parse_file_name(const fs::path& path) {
  const std::string name = path.filename();
  const std::string_view text(name);
  if (!text.ends_with(".csv")) return std::nullopt;
  const std::size_t underscore = text.rfind('_');
  if (underscore == std::string_view::npos) return std::nullopt;
  const std::optional<std::size_t> metric = index_in(kMetrics, text.substr(0, underscore));
  const std::string_view range = text.substr(underscore + 1, text.size() - underscore - 5);
  const std::size_t dash = range.find('-');
  if (!metric || dash == std::string_view::npos) return std::nullopt;
  const auto first = parse_digits(range.substr(0, dash));
  const auto last = parse_digits(range.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  return MonitorFile{*metric, *first, *last, path};
}

/// An integer as a CSV holds it: "3", and "3.0" where pandas saw a gap in the column.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  if (const auto [stop, error] = std::from_chars(text.data(), end, value);
      error == std::errc() && stop == end) {
    return value;
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !(std::fabs(number) < static_cast<double>(kMaxStep))) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number);  // truncated, as Python's int() does
}

/// A statistic: a number, nan, ±inf, or nothing. None for other text.
std::optional<double> parse_value(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.empty() || text == "None" || text == "null" || text == "N/A" || text == "NA") {
    return kMissing;
  }
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range)
    value = std::strtod(std::string(text).c_str(), nullptr);
  return canonical(value);
}

/// Replaces what is no UTF-8: SQLite text must be.
std::string valid_utf8(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80                   ? (byte == 0 ? 0 : 1)
                               : byte >= 0xC2 && byte < 0xE0 ? 2
                               : byte >= 0xE0 && byte < 0xF0 ? 3
                               : byte >= 0xF0 && byte < 0xF5 ? 4
                                                             : 0;
    bool valid = length > 0 && i + length <= text.size();
    for (std::size_t k = 1; valid && k < length; ++k) {
      valid = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    }
    if (valid) {
      result.append(text.substr(i, length));
      i += length;
    } else {
      result.append("\xEF\xBF\xBD");
      ++i;
    }
  }
  return result;
}

bool is_plain_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) - 1U < 0x7F; });
}

/// Where the columns of one file are.
struct Columns {
  std::size_t count = 0;
  std::size_t name = 0;
  std::size_t vpp_stage = 0;
  std::optional<std::size_t> step;
  std::optional<std::size_t> micro_step;
  /// Column and name of each statistic, in the order of kStatistics.
  std::vector<std::pair<std::size_t, std::string>> statistics;
};

/// One row's key.
struct RowKey {
  std::string_view name;
  std::int32_t vpp_stage = 0;
  std::int64_t step = 0;
  std::int32_t micro_step = 0;
};

/// Reads one file row by row and reports what is wrong with it, a line a kind of fault.
class FileReader {
 public:
  FileReader(const MonitorFile& file, Diagnostics& diagnostics)
      : path_(file.path.string()), diagnostics_(diagnostics) {
    try {
      contents_ = FileContents(file.path);
    } catch (const std::system_error& error) {
      skip_file("can't be read: " + error.code().message());
      return;
    }
    reader_.emplace(contents_.text());
    if (contents_.text().empty()) {
      skip_file("is empty (0 bytes)");
    } else if (!reader_->next(fields_)) {
      skip_file("has no header");
    } else {
      read_header();
    }
  }

  const Columns* columns() const { return columns_ ? &*columns_ : nullptr; }

  /// The next good row: its key, and its fields in fields(). False at the end.
  bool next(RowKey& key) {
    if (!columns_) return false;
    while (reader_->next(fields_)) {
      if (const char* fault = read_key(key)) {
        ++bad_rows_;
        if (bad_rows_ == 1) {
          first_fault_ = fault;
          first_bad_line_ = reader_->line();
        }
        continue;
      }
      ++good_rows_;
      return true;
    }
    report_rows();
    return false;
  }

  /// The value of a statistic in the row; missing, and counted, if it is no number.
  double value(std::size_t column) {
    if (const std::optional<double> number = parse_value(fields_[column])) return *number;
    if (bad_values_++ == 0) {
      first_bad_value_ = fields_[column];
      first_bad_value_line_ = reader_->line();
    }
    return kMissing;
  }

 private:
  void skip_file(std::string what) {
    diagnostics_.report({Severity::kSkipped, path_, {}, std::move(what), "nothing of this file"});
  }

  void read_header() {
    Columns columns;
    columns.count = fields_.size();
    std::optional<std::size_t> name;
    std::optional<std::size_t> vpp_stage;
    std::array<std::optional<std::size_t>, kStatistics.size()> statistics;
    std::string unknown;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const std::string_view field = fields_[i];
      if (const auto statistic = index_in(kStatistics, field)) statistics[*statistic] = i;
      if (field == "name") name = i;
      if (field == "vpp_stage") vpp_stage = i;
      if (field == "step") columns.step = i;
      if (field == "micro_step") columns.micro_step = i;
      if (!index_in(kStatistics, field) && !index_in(kOtherColumns, field)) {
        unknown.append(unknown.empty() ? "" : ", ").append(field);
      }
    }
    if (!name || !vpp_stage) {
      skip_file(std::string("has no column ") + (name ? "vpp_stage" : "name"));
      return;
    }
    columns.name = *name;
    columns.vpp_stage = *vpp_stage;
    for (std::size_t i = 0; i < kStatistics.size(); ++i) {
      if (statistics[i]) columns.statistics.emplace_back(*statistics[i], kStatistics[i]);
    }
    if (!unknown.empty()) {
      diagnostics_.notice(path_,
                          "has columns that are no statistic known here: " + valid_utf8(unknown));
    }
    if (columns.statistics.empty()) {
      skip_file("has no column of a statistic");
      return;
    }
    columns_ = std::move(columns);
  }

  /// Fills the key; says what is wrong with the row, if anything.
  const char* read_key(RowKey& key) {
    if (fields_.size() < columns_->count) {
      return reader_->is_terminated() ? "has too few fields" : "is cut";
    }
    if (fields_.size() > columns_->count) return "has too many fields";
    // The last field of a row that a killed process cut may be whole by chance: it is if other
    // rows end with the same text.
    if (!reader_->is_terminated() && good_rows_ > 0 && fields_.back() != last_field_) {
      return "is cut";
    }
    const std::optional<std::int64_t> vpp_stage = parse_integer(fields_[columns_->vpp_stage]);
    if (!vpp_stage || *vpp_stage != static_cast<std::int32_t>(*vpp_stage)) {
      return "has a vpp_stage that is no number";
    }
    std::int64_t step = 0;
    if (columns_->step) {
      const std::optional<std::int64_t> value = parse_integer(fields_[*columns_->step]);
      if (!value || *value < 0 || *value > kMaxStep) return "has a step that is no step number";
      step = *value;
    }
    std::int64_t micro_step = 0;
    if (columns_->micro_step) {
      const std::optional<std::int64_t> value = parse_integer(fields_[*columns_->micro_step]);
      if (!value || *value < 0 || *value >= kMaxMicroStep) {
        return "has a micro_step that is no micro-step number";
      }
      micro_step = *value;
    }
    last_field_.assign(fields_.back());
    key = {fields_[columns_->name], static_cast<std::int32_t>(*vpp_stage), step,
           static_cast<std::int32_t>(micro_step)};
    return nullptr;
  }

  void report_rows() {
    if (bad_rows_ > 0) {
      diagnostics_.report(
          {Severity::kRepaired, path_, "line " + std::to_string(first_bad_line_),
           first_fault_ + (bad_rows_ == 1
                               ? std::string()
                               : " (the first of " + std::to_string(bad_rows_) + " such rows)"),
           "the other " + std::to_string(good_rows_) + " rows"});
    }
    if (bad_values_ > 0) {
      diagnostics_.report(
          {Severity::kRepaired, path_, "line " + std::to_string(first_bad_value_line_),
           "\"" + valid_utf8(first_bad_value_) + "\" is no number" +
               (bad_values_ == 1 ? std::string()
                                 : " (the first of " + std::to_string(bad_values_) + ")"),
           "the other values of these rows"});
    }
  }

  std::string path_;
  Diagnostics& diagnostics_;
  FileContents contents_;
  std::optional<CsvReader> reader_;
  std::optional<Columns> columns_;
  std::vector<std::string_view> fields_;
  std::string last_field_;
  std::size_t good_rows_ = 0;
  std::size_t bad_rows_ = 0;
  std::string first_fault_;
  std::size_t first_bad_line_ = 0;
  std::size_t bad_values_ = 0;
  std::string first_bad_value_;
  std::size_t first_bad_value_line_ = 0;
};

class MonitorSource : public RecordSource {
 public:
  MonitorSource(fs::path directory, MonitorOptions options)
      : directory_(std::move(directory)), options_(std::move(options)) {}

  RecordKind kind() const override { return RecordKind::kMonitor; }
  std::string_view format() const override { return "monitor"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned jobs) override {
    std::vector<ReadUnit> units;
    for (const RankDirectory& found : rank_directories(diagnostics)) {
      add_units(found, units, diagnostics);
    }
    parallel_for(units.size(), jobs, [&](std::size_t i) { count_steps(units[i]); });
    for (const ReadUnit& unit : units) {
      if (!unit.steps.empty()) continue;
      // Nothing will be read: say now what is wrong.
      for (const MonitorFile& file : files_[unit.id]) {
        RowKey key;
        for (FileReader reader(file, diagnostics); reader.next(key);) {
        }
      }
    }
    std::erase_if(units, [](const ReadUnit& unit) { return unit.steps.empty(); });
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    UnitRecords records;
    std::map<std::tuple<std::int64_t, std::int32_t, std::uint32_t>, RecordBlock> blocks;
    for (const MonitorFile& file : files_[unit.id]) {
      FileReader reader(file, diagnostics);
      if (reader.columns() == nullptr) continue;
      const auto& statistics = reader.columns()->statistics;
      Metric metric{RecordKind::kMonitor, std::string(kMetrics[file.metric]), {}};
      for (const auto& [column, name] : statistics) metric.statistics.push_back(name);
      const auto metric_index = static_cast<std::uint32_t>(records.metrics.size());
      records.metrics.push_back(std::move(metric));
      RowKey key;
      RecordBlock* block = nullptr;
      while (reader.next(key)) {
        const std::int32_t micro_step = options_.micro_steps ? key.micro_step : 0;
        if (block == nullptr || block->training_step != key.step ||
            block->micro_step != micro_step) {
          block = &blocks[{key.step, micro_step, metric_index}];
          block->training_step = key.step;
          block->micro_step = micro_step;
          block->metric = metric_index;
        }
        const std::int32_t call = options_.micro_steps ? 0 : key.micro_step;
        // pandas reads an empty name as a missing number, and str() makes "nan" of it.
        if (options_.as_msprobe && key.name.empty()) key.name = "nan";
        if (options_.mapping.empty() && is_plain_text(key.name)) {
          block->targets.push_back(records.targets.intern(key.name, key.vpp_stage, call));
        } else {
          block->targets.push_back(records.targets.intern(
              mapped_name(valid_utf8(key.name), options_.mapping), key.vpp_stage, call));
        }
        for (const auto& [column, name] : statistics) block->values.push_back(reader.value(column));
      }
    }
    for (auto& [key, block] : blocks) records.blocks.push_back(std::move(block));
    return records;
  }

 private:
  std::vector<RankDirectory> rank_directories(Diagnostics& diagnostics) const {
    std::vector<RankDirectory> found;
    for (const fs::path& path : sorted_entries(directory_, diagnostics)) {
      auto directory = parse_rank_directory(path);
      if (directory && is_directory_or_link(path)) found.push_back(std::move(*directory));
    }
    order_across_new_year(found);
    std::sort(found.begin(), found.end(), [](const RankDirectory& a, const RankDirectory& b) {
      return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
    });
    if (options_.as_msprobe) {
      // get_target_output_dir(): the last that is listed replaces the ones before it.
      std::map<std::int32_t, RankDirectory> last;
      for (RankDirectory& directory : found) last[directory.rank] = std::move(directory);
      found.clear();
      for (auto& [rank, directory] : last) found.push_back(std::move(directory));
    }
    return found;
  }

  void add_units(const RankDirectory& found, std::vector<ReadUnit>& units,
                 Diagnostics& diagnostics) {
    std::vector<MonitorFile> files;
    std::error_code error;
    for (fs::directory_iterator it(found.path, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code type_error;
      if (it->path().extension() != ".csv" || it->is_directory(type_error)) continue;
      if (auto file = parse_file_name(it->path())) {
        files.push_back(std::move(*file));
      } else {
        diagnostics.notice(
            it->path().string(),
            "is no monitor file by its name (<metric>_<first>-<last>.csv): left out");
      }
    }
    if (error || files.empty()) {
      diagnostics.report({Severity::kSkipped,
                          found.path.string(),
                          {},
                          error ? "can't be read: " + error.message() : "has no monitor CSV",
                          "nothing of this directory"});
      return;
    }
    std::sort(files.begin(), files.end(), [](const MonitorFile& a, const MonitorFile& b) {
      return std::tie(a.first_step, a.metric, a.last_step) <
             std::tie(b.first_step, b.metric, b.last_step);
    });
    // Files whose steps overlap are one unit.
    for (std::size_t begin = 0; begin < files.size();) {
      std::size_t end = begin;
      std::int64_t last = files[begin].last_step;
      while (end < files.size() && files[end].first_step <= last) {
        last = std::max(last, files[end++].last_step);
      }
      ReadUnit unit;
      unit.rank = found.rank;
      unit.started_ns = found.seconds_of_year.value_or(0) * 1'000'000'000;
      unit.id = files_.size();
      unit.path = found.path.string();
      std::vector<MonitorFile> members;
      for (std::size_t i = begin; i < end; ++i) {
        unit.bytes += size_of(files[i].path);
        members.push_back(files[i]);
      }
      std::sort(members.begin(), members.end(), [](const MonitorFile& a, const MonitorFile& b) {
        return std::tie(a.metric, a.first_step) < std::tie(b.metric, b.first_step);
      });
      files_.push_back(std::move(members));
      units.push_back(std::move(unit));
      begin = end;
    }
  }

  /// The names hold no year. Where they are more than half a year apart, a new year lies between
  /// them.
  static void order_across_new_year(std::vector<RankDirectory>& directories) {
    constexpr std::int64_t kHalfYear = std::int64_t{366} * 24 * 3600 / 2;
    std::set<std::int64_t> times;
    for (const RankDirectory& directory : directories) {
      if (directory.seconds_of_year) times.insert(*directory.seconds_of_year);
    }
    if (times.empty() || *times.rbegin() - *times.begin() <= kHalfYear) return;
    for (RankDirectory& directory : directories) {
      const std::int64_t seconds = directory.seconds_of_year.value_or(0);
      if (seconds < kHalfYear) directory.seconds_of_year = seconds + 2 * kHalfYear;
    }
  }

  void count_steps(ReadUnit& unit) const {
    std::map<std::int64_t, std::int32_t> steps;
    for (const MonitorFile& file : files_[unit.id]) {
      Diagnostics ignored;  // read() reports
      FileReader reader(file, ignored);
      RowKey key;
      std::int32_t* count = nullptr;
      std::int64_t step = -1;
      while (reader.next(key)) {
        if (key.step != step) {
          step = key.step;
          count = &steps.try_emplace(step, 1).first->second;
        }
        if (options_.micro_steps) *count = std::max(*count, key.micro_step + 1);
      }
    }
    unit.steps.assign(steps.begin(), steps.end());
  }

  fs::path directory_;
  MonitorOptions options_;
  std::vector<std::vector<MonitorFile>> files_;  // by unit id
};

}  // namespace

bool is_monitor_tree(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code type_error;
    if (!it->is_directory(type_error) || !parse_rank_directory(it->path())) continue;
    std::error_code inner_error;
    for (fs::directory_iterator file(it->path(), inner_error); !inner_error && file != end;
         file.increment(inner_error)) {
      if (parse_file_name(file->path())) return true;
    }
  }
  return false;
}

std::unique_ptr<RecordSource> make_monitor_source(const fs::path& directory,
                                                  MonitorOptions options) {
  return std::make_unique<MonitorSource>(directory, std::move(options));
}

}  // namespace trendprobe
