#include "writer/record.h"

#include <algorithm>
#include <functional>

namespace trendprobe {

std::string_view to_string(RecordKind kind) {
  return kind == RecordKind::kDump ? "dump" : "monitor";
}

std::uint32_t intern_metric(std::vector<Metric>& metrics, const Metric& metric) {
  const auto found = std::find(metrics.begin(), metrics.end(), metric);
  const auto index = static_cast<std::uint32_t>(found - metrics.begin());
  if (found == metrics.end()) metrics.push_back(metric);
  return index;
}

std::size_t TargetTable::KeyHash::operator()(const Key& key) const {
  std::size_t hash = std::hash<std::string_view>{}(key.name);
  hash ^= static_cast<std::size_t>(key.vpp_stage) * 0x9E3779B97F4A7C15ULL;
  hash ^= static_cast<std::size_t>(key.call) * 0xC2B2AE3D27D4EB4FULL;
  return hash;
}

std::uint32_t TargetTable::intern(std::string_view name, std::int32_t vpp_stage,
                                  std::int32_t call) {
  const auto found = index_.find(Key{name, vpp_stage, call});
  if (found != index_.end()) return found->second;
  const auto index = static_cast<std::uint32_t>(targets_.size());
  const Target& target = targets_.emplace_back(Target{std::string(name), vpp_stage, call});
  index_.emplace(Key{target.name, vpp_stage, call}, index);
  return index;
}

}  // namespace trendprobe
