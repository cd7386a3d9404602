#include "hook/dump_values.h"

#include <array>
#include <cassert>
#include <cstddef>

#include "writer/value_encoding.h"

namespace trendprobe {

void write_dump_values(const TensorStatistics& measured, bool is_floating_point,
                       DumpStatistics statistics, std::span<double> values) {
  assert(values.size() == statistics.size());
  const auto if_floating = [is_floating_point](double value) {
    return is_floating_point ? canonical(value) : kMissing;
  };
  const std::array<double, kDumpStatisticNames.size()> all = {if_floating(measured.norm),
                                                              canonical(measured.max),
                                                              canonical(measured.min),
                                                              if_floating(measured.mean),
                                                              if_floating(measured.std),
                                                              static_cast<double>(measured.nans),
                                                              static_cast<double>(measured.infs),
                                                              static_cast<double>(measured.zeros)};
  std::size_t next = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (statistics.contains(static_cast<DumpStatistic>(i))) values[next++] = all[i];
  }
}

}  // namespace trendprobe
