#include "offline/unit_prefetcher.h"

#include <algorithm>
#include <utility>

namespace trendprobe {

UnitPrefetcher::UnitPrefetcher(std::vector<std::uint64_t> unit_bytes,
                               std::function<UnitRecords(std::size_t)> read, unsigned threads,
                               std::uint64_t window_bytes)
    : unit_bytes_(std::move(unit_bytes)), read_(std::move(read)), window_bytes_(window_bytes) {
  if (threads <= 1) return;
  const std::size_t count = std::min<std::size_t>(threads, unit_bytes_.size());
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
}

UnitPrefetcher::~UnitPrefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool UnitPrefetcher::may_start() const {
  return next_start_ < unit_bytes_.size() &&
         (next_start_ == next_take_ || bytes_held_ + unit_bytes_[next_start_] <= window_bytes_);
}

void UnitPrefetcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [this] { return stop_ || next_start_ == unit_bytes_.size() || may_start(); });
    if (stop_ || next_start_ == unit_bytes_.size()) return;
    const std::size_t unit = next_start_++;
    bytes_held_ += unit_bytes_[unit];
    lock.unlock();
    Result result;
    try {
      result.records = read_(unit);
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    ready_.emplace(unit, std::move(result));
    changed_.notify_all();
  }
}

UnitRecords UnitPrefetcher::next() {
  if (threads_.empty()) return read_(next_take_++);
  std::unique_lock lock(mutex_);
  const std::size_t unit = next_take_;
  changed_.wait(lock, [&] { return ready_.count(unit) != 0; });
  Result result = std::move(ready_.extract(unit).mapped());
  ++next_take_;
  bytes_held_ -= unit_bytes_[unit];
  lock.unlock();
  changed_.notify_all();
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.records);
}

}  // namespace trendprobe
