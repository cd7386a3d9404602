// The whole of a merge, as the command does it.
#pragma once

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "offline/merger.h"

namespace trendprobe {

inline MergeSummary merge_and_publish(std::vector<std::unique_ptr<RecordSource>> sources,
                                      const std::filesystem::path& database,
                                      const MergeOptions& options, Diagnostics& diagnostics) {
  MergedDatabase merged = merge(std::move(sources), database, options, diagnostics);
  merged.publish();
  return merged.summary();
}

}  // namespace trendprobe
