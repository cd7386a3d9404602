// Monitor trees of msProbe's TrainerMonitorV2: rank_<R>/<slug>_step<first>-<last>.csv.
#pragma once

#include <filesystem>
#include <memory>

#include "offline/monitor_source.h"
#include "offline/record_source.h"

namespace trendprobe {

/// True if the directory has a directory rank_<R> with CSV of TrainerMonitorV2 in it.
bool is_monitor_v2_tree(const std::filesystem::path& directory);

/// A unit is the files of one rank that cover the same steps. Metrics and targets get the names
/// that TrainerMon's have: docs/format.md, "TrainerMonitorV2". With as_msprobe nothing is read,
/// since msProbe's data2db can't.
std::unique_ptr<RecordSource> make_monitor_v2_source(const std::filesystem::path& directory,
                                                     MonitorOptions options);

}  // namespace trendprobe
