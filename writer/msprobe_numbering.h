// Micro-steps, call indices and target names of dump data exactly as `msprobe data2db` (26.2.0)
// makes them, its faults included, so that a database can be compared with one of msProbe's.
// Functions named in comments are those of msprobe/core/dump/dump2db/dump2db.py.
//
// Belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "writer/dump_step.h"

namespace trendprobe {

/// Micro-steps of a step: every null-parent forward node of construct.json opens one.
std::int32_t count_micro_steps_as_msprobe(const DumpStep& step);

/// Blocks as number_dump_step() documents them.
std::vector<RecordBlock> number_dump_step_as_msprobe(const DumpStep& step,
                                                     std::int64_t training_step,
                                                     const NumberingOptions& options,
                                                     TargetTable& targets);

}  // namespace trendprobe
