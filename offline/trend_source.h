// Existing trend databases as input: to join several, to cut one down, or to bring one of msProbe
// into TrendProbe's format.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "offline/record_source.h"
#include "writer/name_mapping.h"

namespace trendprobe {

/// Reads those of `databases` that hold `kind`. A unit is one rank and some steps of one database.
/// Where two hold the same record, the later of `databases` wins. Values are exact where the
/// database has tiles; msProbe's rows are cut to ±1e9 and can't tell NaN from missing, which a
/// notice says.
std::unique_ptr<RecordSource> make_trend_source(std::vector<std::filesystem::path> databases,
                                                RecordKind kind, bool micro_steps,
                                                NameMapping mapping);

}  // namespace trendprobe
