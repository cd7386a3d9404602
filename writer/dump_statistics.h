// Which statistics the records of dump data hold.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

/// In the order in which every record and file has them: first the four of msProbe, as its trend
/// database has them.
enum class DumpStatistic : std::uint8_t { kNorm, kMax, kMin, kMean, kStd, kNans, kInfs, kZeros };

/// By enumerator.
inline constexpr std::array<std::string_view, 8> kDumpStatisticNames = {
    "norm", "max", "min", "mean", "std", "nans", "infs", "zeros"};

/// A set of statistics; msProbe's four unless chosen otherwise. A value.
class DumpStatistics {
 public:
  constexpr DumpStatistics() = default;
  /// The statistics of these names, whatever their order. Nothing where a name is unknown or there
  /// is none.
  static std::optional<DumpStatistics> named(std::span<const std::string> names);

  constexpr std::size_t size() const { return static_cast<std::size_t>(std::popcount(bits_)); }
  constexpr bool contains(DumpStatistic statistic) const { return (bits_ & bit(statistic)) != 0; }
  /// In the order of the enumerators.
  std::vector<std::string> names() const;

  bool operator==(const DumpStatistics&) const = default;

 private:
  static constexpr std::uint8_t bit(DumpStatistic statistic) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(statistic));
  }

  std::uint8_t bits_ = 0x0F;
};

}  // namespace trendprobe
