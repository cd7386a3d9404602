#include "hook/device_slab.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>

#include "hook/torch_tensor_stats.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

// A quiet NaN with its sign bit set and a mark that neither hardware nor the missing value has.
constexpr std::uint64_t kPendingMark = 0xFFFA'5000'0000'0000;
constexpr std::uint64_t kPendingMask = 0xFFFF'F000'0000'0000;
constexpr unsigned kFieldShift = 32;
constexpr std::uint64_t kFieldMask = 0xFF;

// Main memory has neither streams nor events: everything has happened when an operator returns.
bool has_streams(const c10::Device& device) { return !device.is_cpu(); }

c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

}  // namespace

double pending_value(std::uint32_t row, std::uint32_t field) {
  return std::bit_cast<double>(kPendingMark | std::uint64_t{field} << kFieldShift | row);
}

void write_pending_values(std::uint32_t row, bool is_floating_point, DumpStatistics statistics,
                          std::span<double> values) {
  struct Field {
    DumpStatistic statistic;
    std::uint32_t position;
    bool of_floating_point;
  };
  constexpr std::array<Field, kDumpStatisticNames.size()> kFields = {{
      {DumpStatistic::kNorm, 0, true},
      {DumpStatistic::kMax, 1, false},
      {DumpStatistic::kMin, 2, false},
      {DumpStatistic::kMean, 3, true},
      {DumpStatistic::kStd, 8, true},
      {DumpStatistic::kNans, 4, false},
      {DumpStatistic::kInfs, 5, false},
      {DumpStatistic::kZeros, 6, false},
  }};
  std::size_t next = 0;
  for (const Field& field : kFields) {
    if (!statistics.contains(field.statistic)) continue;
    values[next++] = field.of_floating_point && !is_floating_point
                         ? kMissing
                         : pending_value(row, field.position);
  }
}

// Rows of one device and type, in the order in which they came.
struct DeviceSlab::Rows {
  std::vector<std::pair<std::uint32_t, at::Tensor>> rows;
  std::vector<c10::Stream> streams;  // distinct: those that compute rows
};

struct DeviceRows::Group {
  std::vector<std::uint32_t> indices;
  // On the device, kept until the copy has come: the next owner of their memory would overwrite it.
  std::vector<at::Tensor> rows;
  at::Tensor all;
  at::Tensor host;  // undefined where there is no pinned memory
  std::optional<c10::Event> copied;
};

DeviceRows::DeviceRows() = default;
DeviceRows::DeviceRows(std::vector<Group> groups) : groups_(std::move(groups)) {}
DeviceRows::~DeviceRows() = default;

void DeviceRows::fetch() {
  for (Group& group : groups_) {
    const OutsideModes outside;
    if (group.copied.has_value()) group.copied->synchronize();
    const at::Tensor host = (group.host.defined() ? group.host : group.all.cpu()).to(at::kDouble);
    const std::int64_t width = host.size(1);
    const double* data = host.const_data_ptr<double>();
    for (std::size_t i = 0; i < group.indices.size(); ++i) {
      const std::uint32_t index = group.indices[i];
      if (rows_.size() <= index) rows_.resize(index + 1);
      const double* row = data + static_cast<std::int64_t>(i) * width;
      rows_[index].assign(row, row + width);
    }
  }
  groups_.clear();
}

void DeviceRows::resolve(std::span<double> values) {
  const std::lock_guard lock(mutex_);
  fetch();
  for (double& value : values) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    if ((bits & kPendingMask) != kPendingMark) continue;
    const auto row = static_cast<std::uint32_t>(bits);
    const std::uint64_t field = bits >> kFieldShift & kFieldMask;
    value =
        row < rows_.size() && field < rows_[row].size() ? canonical(rows_[row][field]) : kMissing;
  }
}

bool DeviceSlab::KeyLess::operator()(const Key& a, const Key& b) const {
  const auto as_tuple = [](const Key& key) {
    return std::tuple(key.first.type(), key.first.index(), key.second);
  };
  return as_tuple(a) < as_tuple(b);
}

DeviceSlab::Added DeviceSlab::add(const at::Tensor& tensor, MeasureAlso also) noexcept {
  try {
    if (!tensor.defined()) return {};
    const c10::Device device = tensor.device();
    std::optional<c10::Stream> stream;
    if (has_streams(device)) {
      stream = current_stream(device);
      if (c10::impl::getDeviceGuardImpl(device.type())->isStreamCapturing(*stream)) return {};
    }
    const at::Tensor row = queue_measurement(tensor, also);
    if (!row.defined()) return {};
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Rows>& rows = rows_[{row.device(), row.scalar_type()}];
    if (!rows) rows = std::make_shared<Rows>();
    if (stream.has_value() &&
        std::find(rows->streams.begin(), rows->streams.end(), *stream) == rows->streams.end()) {
      rows->streams.push_back(*stream);
    }
    rows->rows.emplace_back(count_, row);
    return {Outcome::kQueued, count_++};
  } catch (...) {
    return {Outcome::kFailed, 0};
  }
}

std::shared_ptr<DeviceRows> DeviceSlab::take() {
  std::map<Key, std::shared_ptr<Rows>, KeyLess> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(rows_);
    count_ = 0;
  }
  if (taken.empty()) return nullptr;
  const OutsideModes outside;
  std::vector<DeviceRows::Group> groups;
  for (auto& [key, rows] : taken) {
    const c10::Device device = key.first;
    const c10::OptionalDeviceGuard guard(device);
    DeviceRows::Group& group = groups.emplace_back();
    for (auto& [index, row] : rows->rows) {
      group.indices.push_back(index);
      group.rows.push_back(std::move(row));
    }
    if (has_streams(device)) {
      const c10::Stream stream = current_stream(device);
      for (const c10::Stream& other : rows->streams) {
        if (other == stream) continue;
        c10::Event computed(device.type());
        computed.record(other);
        computed.block(stream);
      }
    }
    group.all = at::stack(group.rows);
    try {
      group.host = at::empty(
          group.all.sizes(),
          at::TensorOptions().dtype(group.all.scalar_type()).pinned_memory(has_streams(device)));
    } catch (const c10::Error&) {
      // Into other memory a copy may wait: the recorder's thread makes it.
    }
    if (group.host.defined()) group.host.copy_(group.all, /*non_blocking=*/true);
    if (has_streams(device)) {
      group.copied.emplace(device.type());
      group.copied->record(current_stream(device));
    }
  }
  return std::make_shared<DeviceRows>(std::move(groups));
}

}  // namespace trendprobe
