// A row of trend_data as SQLite stores it: https://www.sqlite.org/fileformat2.html, 2.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trendprobe {

/// The columns of trend_data's key.
struct RowKey {
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::int64_t target_id = 0;
  std::int64_t metric_id = 0;
};

/// Replaces `record` with the row's record. `values`: the statistics in the order of their columns,
/// each as msProbe's process_tensor_value would store it (NaN and missing as NULL).
void encode_row(const RowKey& key, std::span<const double> values, std::vector<std::byte>& record);

}  // namespace trendprobe
