// The text that `trendprobe merge` prints: what a database holds, what was found non-finite, and
// what was wrong with the input.
//
// Pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "offline/diagnostics.h"
#include "offline/merger.h"

namespace trendprobe {

/// A paragraph on one database.
std::string describe(const MergeSummary& summary);

/// A table of the issues: all losses (at most `limit`), then notices. Empty if there are none.
std::string describe(const std::vector<Issue>& issues, std::size_t limit = 50);

}  // namespace trendprobe
