// The command `trendprobe`.
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "offline/database_info.h"
#include "offline/dump_source.h"
#include "offline/input_discovery.h"
#include "offline/mapping_file.h"
#include "offline/merge_report.h"
#include "offline/merger.h"
#include "offline/monitor_source.h"
#include "offline/progress_line.h"
#include "offline/shard_source.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

constexpr int kAllRead = 0;
constexpr int kSomethingSkipped = 1;
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
  bool quiet = false;
  bool no_progress = false;
};

class MergeCommand {
 public:
  explicit MergeCommand(const MergeArguments& arguments) : arguments_(arguments) {}

  int run() {
    NameMapping mapping;
    if (!arguments_.mapping_file.empty()) mapping = read_mapping_file(arguments_.mapping_file);
    Diagnostics discovery;
    inputs_ = find_inputs(arguments_.data, discovery);
    keep_issues(discovery);
    if (arguments_.format != "auto") keep_format(arguments_.format);
    if (inputs_.empty()) {
      print_issues();
      spdlog::error(
          "no {} found in {}: expected *.shard files, step<N>/rank<R>/dump.json, or "
          "<time>-rank<R>-<id>/<metric>_<first>-<last>.csv; nothing was written",
          arguments_.format == "auto" ? "data" : arguments_.format + " data",
          fmt::join(data_names(), ", "));
      return kNothingWritten;
    }
    fs::create_directories(arguments_.database_directory);
    bool wrote = false;
    bool lost = discovery.has_losses();
    for (const RecordKind kind : {RecordKind::kDump, RecordKind::kMonitor}) {
      std::vector<std::unique_ptr<RecordSource>> sources = sources_of(kind, mapping);
      if (sources.empty()) continue;
      Diagnostics diagnostics;
      // Each database says of all that was left out; print_issues() says it once.
      for (Issue& issue : discovery.issues()) diagnostics.report(std::move(issue));
      MergeSummary summary;
      try {
        summary = merge_kind(kind, std::move(sources), diagnostics);
      } catch (const std::exception&) {
        keep_issues(diagnostics);
        print_issues();
        throw;  // main() says it
      }
      lost = lost || diagnostics.has_losses();
      wrote = wrote || summary.records > 0;
      if (summary.records > 0 && !arguments_.quiet) fmt::print("{}", describe(summary));
      keep_issues(diagnostics);
    }
    print_issues();
    if (!wrote) {
      spdlog::error("there was no record in the input; nothing was written");
      return kNothingWritten;
    }
    return lost ? kSomethingSkipped : kAllRead;
  }

 private:
  std::vector<std::string> data_names() const {
    std::vector<std::string> names;
    for (const fs::path& path : arguments_.data) names.push_back(path.string());
    return names;
  }

  void keep_format(const std::string& format) {
    if (format != "dump") inputs_.dump_trees.clear();
    if (format != "monitor") inputs_.monitor_trees.clear();
    if (format != "shard") inputs_.shards.clear();
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
    }
    if (!inputs_.shards.empty()) {
      sources.push_back(make_shard_source(inputs_.shards, kind, arguments_.micro_steps, mapping));
    }
    return sources;
  }

  MergeSummary merge_kind(RecordKind kind, std::vector<std::unique_ptr<RecordSource>> sources,
                          Diagnostics& diagnostics) const {
    const std::string name(to_string(kind));
    MergeOptions options;
    options.jobs = arguments_.jobs;
    options.micro_steps = arguments_.micro_steps;
    options.as_msprobe = arguments_.as_msprobe;
    options.write_rows = arguments_.layout != "tiles";
    options.write_tiles = arguments_.layout != "rows";
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
};

/// true and false, in any case, as msProbe takes them.
const CLI::CheckedTransformer& true_or_false() {
  static const CLI::CheckedTransformer transformer(
      std::map<std::string, bool>{{"true", true}, {"false", false}}, CLI::ignore_case);
  return transformer;
}

/// Flags that merge and msProbe's data2db have in common.
void add_common_flags(CLI::App& command, MergeArguments& arguments) {
  command
      .add_option("--data", arguments.data,
                  "Directory with shards, dump trees or monitor trees, at any depth (may be "
                  "given several times)")
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
  command.add_flag("-q,--quiet", arguments.quiet, "Print errors and losses only");
  command.add_flag("--no-progress", arguments.no_progress, "Show no progress");
}

void add_log_level(CLI::App& command, std::string& level) {
  command.add_option("--log-level", level, "How much to log on standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
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
      app.add_subcommand("merge", "Merge shards, dump trees and monitor trees");
  add_common_flags(*merge_command, merge_arguments);
  merge_command->add_option("--format", merge_arguments.format, "Read only inputs of this format")
      ->check(CLI::IsMember({"auto", "dump", "monitor", "shard"}))
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

  try {
    app.parse(argc, argv);
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
  return MergeCommand(merge_arguments).run();
}

}  // namespace
}  // namespace trendprobe

int main(int argc, char** argv) {
  try {
    return trendprobe::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
