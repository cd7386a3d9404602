#include "offline/progress_line.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace trendprobe {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuietStart{1000};
constexpr milliseconds kRedraw{100};
constexpr milliseconds kLogLine{10'000};
constexpr int kBarWidth = 30;

}  // namespace

ProgressLine::ProgressLine(std::string label)
    : label_(std::move(label)), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (drawn_ && is_terminal_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::update(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  if (now - start_ < kQuietStart || now - last_ < (is_terminal_ ? kRedraw : kLogLine)) return;
  last_ = now;
  drawn_ = true;
  const double fraction =
      total_bytes == 0 ? 1.0 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double left = fraction > 0 ? seconds * (1 - fraction) / fraction : 0;
  const std::string text = fmt::format("{} {:3.0f} %, {:.0f} of {:.0f} MB, {:.0f} s left", label_,
                                       fraction * 100, static_cast<double>(done_bytes) / 1e6,
                                       static_cast<double>(total_bytes) / 1e6, left);
  if (!is_terminal_) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  const int filled = std::clamp(static_cast<int>(fraction * kBarWidth), 0, kBarWidth);
  fmt::print(stderr, "\r\033[K[{:<{}}] {}", std::string(static_cast<std::size_t>(filled), '='),
             kBarWidth, text);
  std::fflush(stderr);
}

}  // namespace trendprobe
