// Runs a loop on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace trendprobe {

/// Calls body(0) … body(count - 1), in any order, on up to `jobs` threads (the caller's among
/// them), and returns when all have returned. The body does not throw.
void parallel_for(std::size_t count, unsigned jobs, const std::function<void(std::size_t)>& body);

}  // namespace trendprobe
