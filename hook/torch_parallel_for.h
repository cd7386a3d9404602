// ParallelFor on the threads that torch's own operators use.
#pragma once

#include "hook/tensor_stats.h"

namespace trendprobe {

/// Runs on as many threads as torch.get_num_threads() says, which also counts inside
/// torch.set_num_threads(1) workers; in the caller's thread alone where torch has no OpenMP, or
/// where the caller is one of its threads already.
const ParallelFor& torch_parallel_for();

}  // namespace trendprobe
