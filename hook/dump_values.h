// How the measurement of a tensor becomes the values of its record.
#pragma once

#include <span>

#include "hook/tensor_stats.h"
#include "writer/dump_statistics.h"

namespace trendprobe {

/// Writes the chosen statistics' values in their order. As in msProbe
/// (core/dump/data_dump/data_processor/pytorch_processor.py), integers and bools, which are not
/// `is_floating_point`, have no norm and no mean, nor a standard deviation: theirs are kMissing.
/// Complex tensors count as floating-point ones.
/// REQUIRES: values.size() == statistics.size(); measured with its standard deviation if that is
/// among the statistics.
void write_dump_values(const TensorStatistics& measured, bool is_floating_point,
                       DumpStatistics statistics, std::span<double> values);

}  // namespace trendprobe
