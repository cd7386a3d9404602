// The Python module trendprobe._recorder. Needs no torch. hook/trendprobe/_recorder.pyi documents
// it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hook/gil_release.h"
#include "hook/recorder.h"
#include "writer/monitor_v2_step.h"
#include "writer/value_encoding.h"

namespace py = pybind11;

namespace trendprobe {
namespace {

double to_value(const py::handle& object) {
  if (object.is_none()) return kMissing;
  return canonical(py::cast<double>(object));
}

/// The object as a tuple of this size. Throws TypeError.
py::tuple to_tuple(const py::handle& object, std::size_t size, const char* what) {
  if (!py::isinstance<py::tuple>(object) || py::len(object) != size) {
    throw py::type_error(std::string(what) + " is no tuple of " + std::to_string(size));
  }
  return py::reinterpret_borrow<py::tuple>(object);
}

DumpStatistics to_statistics(const std::vector<std::string>& names) {
  const std::optional<DumpStatistics> statistics = DumpStatistics::named(names);
  if (!statistics.has_value() || statistics->names() != names) {
    throw py::value_error(
        "statistics are not some of norm, max, min, mean, std, nans, infs, zeros "
        "in this order");
  }
  return *statistics;
}

DumpStep to_dump_step(Recorder& recorder, const std::vector<std::string>& statistics,
                      const py::list& entries, const py::dict& construct) {
  DumpStep step;
  step.statistics = to_statistics(statistics);
  step.entries.reserve(entries.size());
  for (const py::handle item : entries) {
    const py::tuple entry = to_tuple(item, 3, "an entry");
    DumpEntry& out = step.entries.emplace_back();
    out.name = recorder.intern(py::cast<std::string_view>(entry[0]));
    out.is_recompute = py::cast<bool>(entry[1]);
    out.first_tensor = static_cast<std::uint32_t>(step.tensors.size());
    for (const py::handle tensor : py::cast<py::list>(entry[2])) {
      const py::tuple fields = to_tuple(tensor, 2, "a tensor");
      step.tensors.push_back({recorder.intern(py::cast<std::string_view>(fields[0]))});
      for (const py::handle value : to_tuple(fields[1], step.statistics.size(), "statistics")) {
        step.values.push_back(to_value(value));
      }
    }
    out.tensor_count = static_cast<std::uint32_t>(step.tensors.size()) - out.first_tensor;
  }
  step.construct.reserve(construct.size());
  for (const auto& [key, value] : construct) {
    const auto name = py::cast<std::string_view>(key);
    if (name == "megatron_micro_step_number") continue;
    ConstructNode node;
    node.name = recorder.intern(name);
    py::object parent = py::reinterpret_borrow<py::object>(value);
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
      const auto pair = py::reinterpret_borrow<py::sequence>(value);
      if (pair.size() != 2) continue;
      parent = pair[0];
      if (const py::object counter = pair[1]; !counter.is_none()) {
        node.megatron_micro_step = py::cast<std::int32_t>(counter);
      }
    }
    if (!parent.is_none()) node.parent = recorder.intern(py::cast<std::string_view>(parent));
    step.construct.push_back(node);
  }
  step.has_construct = !step.construct.empty();
  return step;
}

// Appends one row's values. Throws if they are not one a statistic.
void append_values(MonitorBlock& block, const py::handle& values) {
  const auto sequence = py::cast<py::sequence>(values);
  if (sequence.size() != block.metric.statistics.size()) {
    throw py::value_error("a row has " + std::to_string(sequence.size()) + " values for " +
                          std::to_string(block.metric.statistics.size()) + " statistics");
  }
  for (const py::handle value : sequence) block.values.push_back(to_value(value));
}

MonitorBlock to_monitor_block(Recorder& recorder, std::int64_t training_step, std::string metric,
                              std::vector<std::string> statistics, const py::list& rows) {
  MonitorBlock block;
  block.training_step = training_step;
  block.metric = {RecordKind::kMonitor, std::move(metric), std::move(statistics)};
  block.rows.reserve(rows.size());
  block.values.reserve(rows.size() * block.metric.statistics.size());
  for (const py::handle item : rows) {
    const py::tuple row = to_tuple(item, 4, "a row");
    block.rows.push_back({recorder.intern(py::cast<std::string_view>(row[0])),
                          py::cast<std::int32_t>(row[1]), py::cast<std::int32_t>(row[2])});
    append_values(block, row[3]);
  }
  return block;
}

// One block a metric, in the order of their first rows.
std::vector<MonitorBlock> to_monitor_v2_blocks(Recorder& recorder, std::int64_t training_step,
                                               std::string_view slug,
                                               const std::vector<std::string>& statistics,
                                               const py::list& rows) {
  std::vector<MonitorV2Row> numbered;
  numbered.reserve(rows.size());
  for (const py::handle item : rows) {
    const py::tuple row = to_tuple(item, 5, "a row");
    numbered.push_back({py::cast<std::string_view>(row[0]), py::cast<std::string_view>(row[1]),
                        py::cast<std::int32_t>(row[2]), py::cast<std::int32_t>(row[3])});
  }
  const std::vector<MonitorV2Record> records = number_monitor_v2_step(slug, numbered);
  std::vector<MonitorBlock> blocks;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const MonitorV2Record& record = records[i];
    auto block = std::find_if(blocks.begin(), blocks.end(), [&](const MonitorBlock& other) {
      return other.metric.name == record.metric;
    });
    if (block == blocks.end()) {
      blocks.emplace_back();
      block = blocks.end() - 1;
      block->training_step = training_step;
      block->metric = {RecordKind::kMonitor, record.metric, statistics};
    }
    block->rows.push_back(
        {recorder.intern(record.target), record.vpp_stage, record.micro_step, record.call});
    append_values(*block, py::reinterpret_borrow<py::tuple>(rows[i])[4]);
  }
  return blocks;
}

}  // namespace
}  // namespace trendprobe

PYBIND11_MODULE(_recorder, module) {
  using trendprobe::Recorder;
  using trendprobe::RecorderOptions;

  module.attr("__version__") = TRENDPROBE_VERSION;
  py::class_<Recorder>(module, "Recorder")
      .def(py::init([](const std::string& directory, const std::string& durability,
                       std::size_t queue_bytes, const std::string& on_full,
                       std::uint64_t rotate_bytes) {
             RecorderOptions options;
             options.directory = directory;
             options.queue_bytes = queue_bytes;
             options.rotate_bytes = rotate_bytes;
             if (durability == "step") {
               options.durability = trendprobe::Durability::kStep;
             } else if (durability != "process") {
               throw py::value_error("durability is neither \"process\" nor \"step\": " +
                                     durability);
             }
             if (on_full == "drop") {
               options.when_full = trendprobe::WhenFull::kDrop;
             } else if (on_full != "wait") {
               throw py::value_error("on_full is neither \"wait\" nor \"drop\": " + on_full);
             }
             return std::make_unique<Recorder>(std::move(options));
           }),
           py::arg("directory"), py::kw_only(), py::arg("durability") = "process",
           py::arg("queue_bytes") = RecorderOptions{}.queue_bytes, py::arg("on_full") = "wait",
           py::arg("rotate_bytes") = RecorderOptions{}.rotate_bytes)
      .def(
          "submit_dump_step",
          [](Recorder& recorder, std::int64_t training_step,
             const std::vector<std::string>& statistics, const py::list& entries,
             const py::dict& construct, bool complete) {
            trendprobe::DumpStep step =
                trendprobe::to_dump_step(recorder, statistics, entries, construct);
            const trendprobe::GilRelease release;
            return recorder.submit(std::move(step), training_step, complete);
          },
          py::arg("training_step"), py::arg("statistics"), py::arg("entries"), py::arg("construct"),
          py::kw_only(), py::arg("complete") = true)
      .def(
          "submit_monitor",
          [](Recorder& recorder, std::int64_t training_step, std::string metric,
             std::vector<std::string> statistics, const py::list& rows) {
            trendprobe::MonitorBlock block = trendprobe::to_monitor_block(
                recorder, training_step, std::move(metric), std::move(statistics), rows);
            const trendprobe::GilRelease release;
            return recorder.submit(std::move(block));
          },
          py::arg("training_step"), py::arg("metric"), py::arg("statistics"), py::arg("rows"))
      .def(
          "submit_monitor_v2",
          [](Recorder& recorder, std::int64_t training_step, const std::string& slug,
             const std::vector<std::string>& statistics, const py::list& rows) {
            std::vector<trendprobe::MonitorBlock> blocks =
                trendprobe::to_monitor_v2_blocks(recorder, training_step, slug, statistics, rows);
            const trendprobe::GilRelease release;
            bool all = true;
            for (trendprobe::MonitorBlock& block : blocks) {
              all = recorder.submit(std::move(block)) && all;
            }
            return all;
          },
          py::arg("training_step"), py::arg("slug"), py::arg("statistics"), py::arg("rows"))
      .def("set_rank", &Recorder::set_rank, py::arg("rank"))
      .def("set_info", &Recorder::set_info, py::arg("key"), py::arg("value"))
      .def("flush",
           [](Recorder& recorder) {
             const trendprobe::GilRelease release;
             recorder.flush();
           })
      .def("close",
           [](Recorder& recorder) {
             const trendprobe::GilRelease release;
             recorder.close();
           })
      .def("_sink",
           [](Recorder& recorder) {
             return py::capsule(static_cast<trendprobe::RecordSink*>(&recorder),
                                trendprobe::kRecordSinkCapsule);
           })
      .def("take_warning", &Recorder::take_warning)
      .def_property_readonly("shard",
                             [](const Recorder& recorder) { return recorder.shard().string(); })
      .def_property_readonly(
          "committed_steps",
          [](const Recorder& recorder) { return recorder.counts().committed_steps; })
      .def_property_readonly(
          "committed_records",
          [](const Recorder& recorder) { return recorder.counts().committed_records; })
      .def_property_readonly(
          "lost_records", [](const Recorder& recorder) { return recorder.counts().lost_records; });
}
