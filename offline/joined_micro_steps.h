// `--micro_step false` for sources whose records are numbered by micro-step.
#pragma once

#include "offline/record_source.h"
#include "writer/record.h"

namespace trendprobe {

/// Puts all micro-steps of a training step into one. What they tell apart becomes the call, as in
/// msProbe's numbers: the running number of the call in dump data; in monitor data the micro-step
/// itself, or where a target has several calls in a micro-step, the next number that is free.
void join_micro_steps(UnitRecords& records, RecordKind kind);

}  // namespace trendprobe
