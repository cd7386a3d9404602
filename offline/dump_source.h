// Dump trees of msProbe's PrecisionDebugger: step<N>/rank<R>|proc<PID>/{dump,construct}.json.
#pragma once

#include <filesystem>
#include <memory>

#include "offline/record_source.h"
#include "writer/dump_step.h"

namespace trendprobe {

/// True if the directory has a step<N> directory.
bool is_dump_tree(const std::filesystem::path& directory);

/// A unit is one dump.json. A process without a rank (proc<PID>) gets one: that of a rank<R> (or of
/// another process) which it never shares a step with, else the next free number; with as_msprobe
/// the numbers after the highest rank of each step, by PID.
std::unique_ptr<RecordSource> make_dump_source(const std::filesystem::path& directory,
                                               NumberingOptions options);

}  // namespace trendprobe
