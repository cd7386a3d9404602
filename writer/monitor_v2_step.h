// One training step of one monitor of TrainerMonitorV2, and how its rows become records.
//
// The hook gets the rows while the training runs; the offline parser reads them from CSV. Metric,
// target name, micro-step and call are decided here, once, for both: docs/format.md,
// "TrainerMonitorV2".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

/// One row, in the order in which the training ran. Views are borrowed.
struct MonitorV2Row {
  std::string_view name;
  std::string_view scope;
  /// -1: the model has no virtual pipeline stages.
  std::int32_t vpp_stage = 0;
  /// Of a weight's gradient, from 1; 0 where the row has none.
  std::int32_t micro_step = 0;
};

/// Where the values of one row belong.
struct MonitorV2Record {
  std::string metric;
  std::string target;
  std::int32_t vpp_stage = 0;
  std::int32_t micro_step = 0;
  std::int32_t call = 0;
};

/// One a row. `slug` is the monitor: module, weight_grad, optimizer, param, cc.
std::vector<MonitorV2Record> number_monitor_v2_step(std::string_view slug,
                                                    const std::vector<MonitorV2Row>& rows);

}  // namespace trendprobe
