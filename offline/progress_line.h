// Shows how far a merge is, on standard error: a bar that is redrawn on a terminal, a line now and
// then elsewhere, so that a log file stays readable.
//
// Belongs to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace trendprobe {

class ProgressLine {
 public:
  /// `label` names what is done. Nothing is shown if it is done within a second.
  explicit ProgressLine(std::string label);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// Removes the bar.
  ~ProgressLine();

  void update(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool is_terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace trendprobe
