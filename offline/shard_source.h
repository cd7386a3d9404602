// Shards that the hook wrote: docs/format.md, "Shard".
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "offline/record_source.h"
#include "writer/name_mapping.h"

namespace trendprobe {

/// The records of one kind in a set of shards. A unit is a range of commits of one shard. A shard
/// whose rank was never known gets the lowest rank that no other shard has, by start time.
/// A shard that is still being written yields what was committed until it is scanned.
std::unique_ptr<RecordSource> make_shard_source(std::vector<std::filesystem::path> shards,
                                                RecordKind kind, bool micro_steps,
                                                NameMapping mapping);

}  // namespace trendprobe
