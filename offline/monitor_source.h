// Monitor trees of msProbe's TrainerMon with "format": "csv":
// <time>-rank<R>-<id>/<metric>_<first>-<last>.csv.
#pragma once

#include <filesystem>
#include <memory>

#include "offline/record_source.h"
#include "writer/name_mapping.h"

namespace trendprobe {

struct MonitorOptions {
  /// False: a micro-step is no step of its own but tells targets apart (`--micro_step false`).
  bool micro_steps = true;
  /// As msProbe's data2db: of several directories of one rank only the last that the file system
  /// lists is read.
  bool as_msprobe = false;
  NameMapping mapping;
};

/// True if the directory has a directory of one rank with monitor CSV in it.
bool is_monitor_tree(const std::filesystem::path& directory);

/// A unit is the files of one rank's directory that cover the same steps, or some of these steps
/// where the files are large. Several directories of a rank (restarts) are all read; where they
/// hold the same record, the one with the later time in its name wins.
std::unique_ptr<RecordSource> make_monitor_source(const std::filesystem::path& directory,
                                                  MonitorOptions options);

}  // namespace trendprobe
