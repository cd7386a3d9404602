#include "offline/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace trendprobe {

void parallel_for(std::size_t count, unsigned jobs, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min<std::size_t>(jobs, count); ++i) threads.emplace_back(work);
  work();
}

}  // namespace trendprobe
