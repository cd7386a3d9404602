// Reconciles any number of record sources of one kind into one trend database.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offline/diagnostics.h"
#include "offline/number_ranges.h"
#include "offline/record_source.h"
#include "writer/replacement_file.h"

namespace trendprobe {

struct MergeOptions {
  /// Parsing threads.
  unsigned jobs = 1;
  /// False: the step axis is the training step.
  bool micro_steps = true;
  /// Numbering and filling of msProbe's data2db, faults included (the sources number; the merger
  /// keeps the first of two rows with one key, and writes global_stats and tags as msProbe does).
  bool as_msprobe = false;
  bool write_rows = true;
  bool write_tiles = true;
  /// Only these training steps and ranks; the global steps keep the numbers that they have among
  /// all steps of the input.
  NumberRanges training_steps;
  NumberRanges ranks;
  /// Called from the merging thread with bytes done and in all.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
};

/// One non-finite value, for the summary.
struct NonFiniteFinding {
  std::int64_t step = 0;
  std::int64_t training_step = 0;
  std::int32_t micro_step = 0;
  std::int32_t rank = 0;
  std::string metric;
  std::string target;
  std::string statistic;
  std::string value;
};

/// What a merge wrote.
struct MergeSummary {
  std::filesystem::path database;
  std::uint64_t records = 0;
  std::uint64_t superseded = 0;
  std::uint64_t nonfinite_values = 0;
  std::size_t global_steps = 0;
  std::size_t training_steps = 0;
  std::int64_t first_training_step = 0;
  std::int64_t last_training_step = 0;
  std::size_t ranks = 0;
  std::int32_t first_rank = 0;
  std::int32_t last_rank = 0;
  /// Distinct modules (target names without their last tensor part) and distinct targets.
  std::size_t modules = 0;
  std::size_t targets = 0;
  /// The first findings by step, network order and rank; at most 20.
  std::vector<NonFiniteFinding> first_nonfinite;
};

/// A database that is complete but still beside its final name, where it replaces nothing; it is
/// removed unless publish() is called. Belongs to one thread.
class MergedDatabase {
 public:
  /// No database: the sources held no record.
  MergedDatabase() = default;
  MergedDatabase(MergeSummary summary, std::unique_ptr<ReplacementFile> file)
      : summary_(std::move(summary)), file_(std::move(file)) {}

  const MergeSummary& summary() const { return summary_; }
  /// Syncs the database and moves it to its final name. Does nothing where there is none. Throws
  /// std::filesystem::filesystem_error, or BusyError when another process is writing the old one.
  void publish() {
    if (file_) file_->publish();
  }

 private:
  MergeSummary summary_;
  std::unique_ptr<ReplacementFile> file_;
};

/// Writes `database` from the sources (all of one kind), beside it first: an existing database
/// stays as it is until the result is published. The summary has no records, and there is nothing
/// to publish, when the sources hold none. Throws SqliteError, BusyError or
/// std::filesystem::filesystem_error when the output can't be written.
MergedDatabase merge(std::vector<std::unique_ptr<RecordSource>> sources,
                     const std::filesystem::path& database, const MergeOptions& options,
                     Diagnostics& diagnostics);

}  // namespace trendprobe
