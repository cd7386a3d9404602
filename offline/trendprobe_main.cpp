// The command `trendprobe`.
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "offline/database_info.h"
#include "offline/dump_source.h"
#include "offline/input_discovery.h"
#include "offline/mapping_file.h"
#include "offline/merge_report.h"
#include "offline/merger.h"
#include "offline/monitor_source.h"
#include "offline/monitor_v2_source.h"
#include "offline/number_ranges.h"
#include "offline/progress_line.h"
#include "offline/shard_source.h"
#include "offline/trend_source.h"
#include "offline/verification.h"
#include "writer/replacement_file.h"
#include "writer/sqlite_handle.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

constexpr int kAllRead = 0;
constexpr int kSomethingSkipped = 1;
constexpr int kSomethingWrong = 1;  // of verify
constexpr int kNothingWritten = 2;
constexpr unsigned kMaxJobs = 128;  // msProbe's limit for --process_num

/// What the flags of merge and data2db say.
struct MergeArguments {
  std::vector<fs::path> data;
  fs::path database_directory;
  std::string format = "auto";
  std::string mapping_file;
  bool micro_steps = true;
  unsigned jobs = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxJobs);
  bool as_msprobe = false;
  std::string layout = "both";
  bool strict = false;
  NumberRanges steps;
  NumberRanges ranks;
  bool quiet = false;
  bool no_progress = false;
};

class MergeCommand {
 public:
  explicit MergeCommand(const MergeArguments& arguments) : arguments_(arguments) {}

  int run() {
    try {
      return merge_all();
    } catch (const BusyError& error) {
      return fail(error.what());  // which says what to do
    } catch (const fs::filesystem_error& error) {
      return fail(
          fmt::format("{}: {}; {}", error.path1().string(), error.code().message(), kOutputAdvice));
    } catch (const SqliteError& error) {
      return fail(fmt::format("{}; {}", error.what(), kOutputAdvice));
    }
  }

 private:
  static constexpr std::string_view kOutputAdvice =
      "make room, or choose a --db that can be written, and merge again";

  /// Says what went wrong with the output, and what there is of it.
  int fail(std::string_view what) const {
    if (written_.empty()) {
      fmt::print(stderr, "error: {}\nnothing was written; an earlier database is as it was\n",
                 what);
      return kNothingWritten;
    }
    fmt::print(stderr, "error: {}\nonly {} was written; an earlier other database is as it was\n",
               what, written_);
    return kSomethingSkipped;
  }

  int merge_all() {
    NameMapping mapping;
    if (!arguments_.mapping_file.empty()) mapping = read_mapping_file(arguments_.mapping_file);
    Diagnostics discovery;
    inputs_ = find_inputs(
        arguments_.data,
        arguments_.format == "trend" ? TrendDatabases::kFound : TrendDatabases::kNamed, discovery);
    keep_issues(discovery);
    if (arguments_.format != "auto") keep_format(arguments_.format);
    if (inputs_.empty()) {
      print_issues();
      spdlog::error(
          "no {} found in {}: expected *.shard files, step<N>/rank<R>/dump.json, "
          "<time>-rank<R>-<id>/<metric>_<first>-<last>.csv, "
          "rank_<R>/<slug>_step<first>-<last>.csv, "
          "or with --format trend *.trend.db; "
          "nothing was written",
          arguments_.format == "auto" ? "data" : arguments_.format + " data",
          fmt::join(data_names(), ", "));
      return kNothingWritten;
    }
    fs::create_directories(arguments_.database_directory);
    bool found_records = false;
    bool lost = discovery.has_losses();
    std::vector<MergedDatabase> unpublished;
    for (const RecordKind kind : {RecordKind::kDump, RecordKind::kMonitor}) {
      std::vector<std::unique_ptr<RecordSource>> sources = sources_of(kind, mapping);
      if (sources.empty()) continue;
      Diagnostics diagnostics;
      // Each database says of all that was left out; print_issues() says it once.
      for (Issue& issue : discovery.issues()) diagnostics.report(std::move(issue));
      try {
        MergedDatabase merged = merge_kind(kind, std::move(sources), diagnostics);
        found_records = found_records || merged.summary().records > 0;
        // One loss anywhere keeps all of them back.
        if (arguments_.strict) {
          unpublished.push_back(std::move(merged));
        } else {
          publish(merged);
        }
      } catch (const std::exception&) {
        keep_issues(diagnostics);
        print_issues();
        throw;
      }
      lost = lost || diagnostics.has_losses();
      keep_issues(diagnostics);
    }
    if (arguments_.strict && lost) {
      print_issues();
      spdlog::error("--strict: input was skipped or repaired; nothing was written");
      return kSomethingSkipped;
    }
    for (MergedDatabase& merged : unpublished) publish(merged);
    print_issues();
    if (!found_records) {
      spdlog::error(arguments_.steps.is_everything() && arguments_.ranks.is_everything()
                        ? "there was no record in the input; nothing was written"
                        : "there was no record of these --steps and --ranks in the input; nothing "
                          "was written");
      return kNothingWritten;
    }
    return lost ? kSomethingSkipped : kAllRead;
  }

  std::vector<std::string> data_names() const {
    std::vector<std::string> names;
    for (const fs::path& path : arguments_.data) names.push_back(path.string());
    return names;
  }

  void keep_format(const std::string& format) {
    if (format != "dump") inputs_.dump_trees.clear();
    if (format != "monitor") {
      inputs_.monitor_trees.clear();
      inputs_.monitor_v2_trees.clear();
    }
    if (format != "shard") inputs_.shards.clear();
    if (format != "trend") inputs_.trend_databases.clear();
  }

  void publish(MergedDatabase& merged) {
    merged.publish();
    if (merged.summary().records == 0) return;
    written_ = merged.summary().database.string();
    if (!arguments_.quiet) fmt::print("{}", describe(merged.summary()));
  }

  std::vector<std::unique_ptr<RecordSource>> sources_of(RecordKind kind,
                                                        const NameMapping& mapping) const {
    std::vector<std::unique_ptr<RecordSource>> sources;
    if (kind == RecordKind::kDump) {
      for (const fs::path& tree : inputs_.dump_trees) {
        sources.push_back(
            make_dump_source(tree, {arguments_.micro_steps, arguments_.as_msprobe, mapping}));
      }
    } else {
      for (const fs::path& tree : inputs_.monitor_trees) {
        sources.push_back(
            make_monitor_source(tree, {arguments_.micro_steps, arguments_.as_msprobe, mapping}));
      }
      for (const fs::path& tree : inputs_.monitor_v2_trees) {
        sources.push_back(
            make_monitor_v2_source(tree, {arguments_.micro_steps, arguments_.as_msprobe, mapping}));
      }
    }
    if (!inputs_.trend_databases.empty()) {
      sources.push_back(
          make_trend_source(inputs_.trend_databases, kind, arguments_.micro_steps, mapping));
    }
    if (!inputs_.shards.empty()) {
      sources.push_back(make_shard_source(inputs_.shards, kind, arguments_.micro_steps, mapping));
    }
    return sources;
  }

  MergedDatabase merge_kind(RecordKind kind, std::vector<std::unique_ptr<RecordSource>> sources,
                            Diagnostics& diagnostics) const {
    const std::string name(to_string(kind));
    MergeOptions options;
    options.jobs = arguments_.jobs;
    options.micro_steps = arguments_.micro_steps;
    options.as_msprobe = arguments_.as_msprobe;
    options.write_rows = arguments_.layout != "tiles";
    options.write_tiles = arguments_.layout != "rows";
    options.training_steps = arguments_.steps;
    options.ranks = arguments_.ranks;
    std::optional<ProgressLine> progress;
    if (!arguments_.quiet && !arguments_.no_progress) {
      progress.emplace("merging " + name + " data");
      options.progress = [&progress](std::uint64_t done, std::uint64_t total) {
        progress->update(done, total);
      };
    }
    return merge(std::move(sources), arguments_.database_directory / (name + "_data.trend.db"),
                 options, diagnostics);
  }

  void keep_issues(const Diagnostics& diagnostics) {
    for (Issue& issue : diagnostics.issues()) all_issues_.report(std::move(issue));
  }

  /// A shard is read once for each kind of record; what is wrong with it is said once.
  void print_issues() const {
    std::vector<Issue> issues = all_issues_.issues();
    issues.erase(std::unique(issues.begin(), issues.end()), issues.end());
    fmt::print(stderr, "{}", describe(issues));
  }

  const MergeArguments& arguments_;
  Diagnostics all_issues_;
  Inputs inputs_;
  std::string written_;  // the database that was published last
};

/// true and false, in any case, as msProbe takes them.
const CLI::CheckedTransformer& true_or_false() {
  static const CLI::CheckedTransformer transformer(
      std::map<std::string, bool>{{"true", true}, {"false", false}}, CLI::ignore_case);
  return transformer;
}

/// A flag that takes a list of numbers and ranges.
void add_ranges(CLI::App& command, const std::string& name, NumberRanges& ranges,
                const std::string& description) {
  command.add_option_function<std::string>(
      name,
      [&ranges, name](const std::string& text) {
        try {
          ranges = NumberRanges(text);
        } catch (const std::invalid_argument& error) {
          throw CLI::ValidationError(name, error.what());
        }
      },
      description);
}

/// Flags that merge and msProbe's data2db have in common.
void add_common_flags(CLI::App& command, MergeArguments& arguments) {
  command
      .add_option("--data", arguments.data,
                  "Directory with shards, dump trees or monitor trees, at any depth, or a shard or "
                  "trend database itself (may be given several times)")
      ->required()
      ->take_all();
  command
      .add_option("--db", arguments.database_directory,
                  "Directory for dump_data.trend.db and monitor_data.trend.db")
      ->required();
  command.add_option(
      "--mapping", arguments.mapping_file,
      "JSON file {\"old\": \"new\", …}: replaces substrings of names, in file order");
  command
      .add_option("--micro_step", arguments.micro_steps,
                  "Number the steps by micro-step (true) or training step (false)")
      ->transform(true_or_false())
      ->default_str("true");
  command
      .add_option("--process_num,--jobs,-j", arguments.jobs,
                  "Threads that parse the input (default: one a core)")
      ->check(CLI::Range(1U, kMaxJobs));
  command
      .add_option("--layout", arguments.layout,
                  "both; rows: msProbe's trend_data only; tiles: packed tiles only, which "
                  "TrendProbe's viewer reads")
      ->check(CLI::IsMember({"both", "rows", "tiles"}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--compat", [&arguments](const std::string&) { arguments.as_msprobe = true; },
          "msprobe: number and fill exactly as msProbe's data2db does, its faults included")
      ->check(CLI::IsMember({"msprobe"}));
  add_ranges(command, "--steps", arguments.steps,
             "Only these training steps, such as 0-99,200,300-");
  add_ranges(command, "--ranks", arguments.ranks, "Only these ranks, such as 0,8,16-31");
  command.add_flag("--strict", arguments.strict,
                   "Where any input has to be skipped or repaired, write nothing and exit with 1");
  command.add_flag("-q,--quiet", arguments.quiet, "Print errors and losses only");
  command.add_flag("--no-progress", arguments.no_progress, "Show no progress");
}

void add_log_level(CLI::App& command, std::string& level) {
  command.add_option("--log-level", level, "How much to log on standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
}

int verify(const fs::path& file) {
  const Verification result = verify_file(file);
  for (const std::string& remark : result.remarks) fmt::print("{}: {}\n", file.string(), remark);
  for (const std::string& problem : result.problems) {
    fmt::print("{}: problem: {}\n", file.string(), problem);
  }
  fmt::print(
      "{}: {}\n", file.string(),
      result.problems.empty() ? "sound" : fmt::format("{} problems", result.problems.size()));
  return result.problems.empty() ? kAllRead : kSomethingWrong;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Merges what msProbe recorded into one database a kind, for TensorBoard's tab TREND "
      "ANALYZER.\nExit codes: 0 all was read, 1 something was skipped or repaired, 2 "
      "nothing was written or wrong arguments.",
      "trendprobe");
  app.set_version_flag("--version", std::string("trendprobe ") + TRENDPROBE_VERSION);
  app.require_subcommand(1);
  std::string log_level = "info";

  MergeArguments merge_arguments;
  CLI::App* merge_command =
      app.add_subcommand("merge", "Merge shards, dump trees, monitor trees and trend databases");
  add_common_flags(*merge_command, merge_arguments);
  merge_command->add_option("--format", merge_arguments.format, "Read only inputs of this format")
      ->check(CLI::IsMember({"auto", "dump", "monitor", "shard", "trend"}))
      ->capture_default_str();
  add_log_level(*merge_command, log_level);
  merge_command->footer("Example: trendprobe merge --data ./trend --db ./trend_db");

  CLI::App* data2db_command = app.add_subcommand(
      "data2db", "Convert msProbe's dump and monitor files; takes the flags of `msprobe data2db`");
  add_common_flags(*data2db_command, merge_arguments);
  data2db_command->add_option("--format", merge_arguments.format, "Read only inputs of this format")
      ->check(CLI::IsMember({"auto", "dump", "monitor"}))
      ->capture_default_str();
  add_log_level(*data2db_command, log_level);
  data2db_command->footer("Example: trendprobe data2db --data ./dump_path --db ./trend_db");

  fs::path file;
  CLI::App* info_command =
      app.add_subcommand("info", "Print what a trend database or a shard holds");
  info_command->add_option("file", file, "A *.trend.db or *.shard file")->required();
  add_log_level(*info_command, log_level);
  info_command->footer("Example: trendprobe info ./trend_db/dump_data.trend.db");

  CLI::App* verify_command = app.add_subcommand(
      "verify", "Check a trend database or a shard; exits with 1 where something is wrong");
  verify_command->add_option("file", file, "A *.trend.db or *.shard file")->required();
  add_log_level(*verify_command, log_level);
  verify_command->footer("Example: trendprobe verify ./trend_db/dump_data.trend.db");

  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // A misspelled command is an unknown argument to CLI11, which misses a command first.
    if (argc > 1 && app.get_subcommands().empty() && argv[1][0] != '-') {
      fmt::print(stderr, "there is no command {}\nRun with --help for more information.\n",
                 argv[1]);
      return kNothingWritten;
    }
    app.exit(error);
    return kNothingWritten;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kAllRead : kNothingWritten;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("trendprobe"));
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(spdlog::level::from_str(log_level));

  if (info_command->parsed()) {
    fmt::print("{}", describe_file(file));
    return kAllRead;
  }
  if (verify_command->parsed()) return verify(file);
  return MergeCommand(merge_arguments).run();
}

}  // namespace
}  // namespace trendprobe

int main(int argc, char** argv) {
  // Files 0640 and directories 0750 at most, as msProbe makes them.
  ::umask(::umask(0) | 027);
  // A limit on the size of files is an error to be named, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return trendprobe::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
