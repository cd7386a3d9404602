#include "hook/torch_parallel_for.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

// What a compiler makes of "#pragma omp parallel": runs fn(data) on num_threads threads. Torch has
// made its OpenMP library's symbols global, so this is the function in torch's own copy. Linking to
// OpenMP would bring another copy, with threads of its own, wherever torch bundles one under a
// changed name.
extern "C" void GOMP_parallel(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags)
    __attribute__((weak));

namespace trendprobe {
namespace {

struct Work {
  std::int64_t n;
  const std::function<void(std::int64_t)>& body;
  std::atomic<std::int64_t> next{0};

  void run() {
    for (std::int64_t i = next++; i < n; i = next++) body(i);
  }
};

}  // namespace

const ParallelFor& torch_parallel_for() {
  static const ParallelFor parallel_for = [](std::int64_t n,
                                             const std::function<void(std::int64_t)>& body) {
    Work work{n, body};
    const std::int64_t threads = std::min<std::int64_t>(n, at::get_num_threads());
    if (threads <= 1 || GOMP_parallel == nullptr || at::in_parallel_region()) {
      work.run();
      return;
    }
    GOMP_parallel([](void* data) { static_cast<Work*>(data)->run(); }, &work,
                  static_cast<unsigned>(threads), 0);
  };
  return parallel_for;
}

}  // namespace trendprobe
