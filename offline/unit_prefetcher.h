// Reads units with several threads, ahead of whoever takes them, and hands them out in their order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "offline/record_source.h"

namespace trendprobe {

class UnitPrefetcher {
 public:
  /// Reads unit i of `unit_bytes.size()` with `read(i)`, called from `threads` threads (1 = from
  /// next() itself). What is read or being read and not taken yet is at most `window_bytes` of
  /// input, or one unit.
  UnitPrefetcher(std::vector<std::uint64_t> unit_bytes,
                 std::function<UnitRecords(std::size_t)> read, unsigned threads,
                 std::uint64_t window_bytes);
  UnitPrefetcher(const UnitPrefetcher&) = delete;
  UnitPrefetcher& operator=(const UnitPrefetcher&) = delete;
  /// Stops the threads; waits for reads in progress.
  ~UnitPrefetcher();

  /// The next unit. Throws what its read threw. REQUIRES: not called more often than there are
  /// units.
  UnitRecords next();

 private:
  struct Result {
    UnitRecords records;
    std::exception_ptr error;
  };

  void run();
  bool may_start() const;

  std::vector<std::uint64_t> unit_bytes_;
  std::function<UnitRecords(std::size_t)> read_;
  std::uint64_t window_bytes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, Result> ready_;
  std::size_t next_start_ = 0;
  std::size_t next_take_ = 0;
  std::uint64_t bytes_held_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace trendprobe
