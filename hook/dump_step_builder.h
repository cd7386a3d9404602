// Collects one process's dump data of the training step that is running.
//
// Thread-safe: autograd's own threads add to the same step. Nothing is allocated for a record once
// the buffers have grown to the largest step so far.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "writer/dump_step.h"

namespace trendprobe {

/// Which part of a dump entry tensors belong to. An entry holds each at most once.
enum class DumpSection : std::uint8_t {
  kInputArgs,
  kInputKwargs,
  kOutput,
  kParameters,
  /// A backward entry's gradients, as msProbe names them: "input" is what reached the module.
  kGradInput,
  kGradOutput,
  /// Unlike the others, one a parameter: told apart by the first tensor's suffix.
  kParametersGrad,
};

/// All views must be interned by the one RecordSink that the step is submitted to, as entries are
/// told apart by the address of their names.
class DumpStepBuilder {
 public:
  struct Section {
    DumpSection section;
    std::span<const DumpTensor> tensors;
    /// tensors.size() × the number of statistics, as in DumpStep.
    std::span<const double> values;
  };

  explicit DumpStepBuilder(DumpStatistics statistics = {}) : statistics_(statistics) {}

  /// Adds sections to an entry, which is made where there is none. A section that comes again takes
  /// the place of the first. An entry of a module that was there before moves to the end, as in
  /// msProbe's writer (core/dump/data_dump/json_writer.py, update_data); an API's keeps its place.
  /// Throws std::bad_alloc, and is as it was then.
  void add(std::string_view entry, std::span<const Section> sections, bool is_recompute);
  /// Takes an entry back.
  void remove(std::string_view entry);
  /// Sets the parent of a node of construct.json; a node that is there keeps its place.
  void set_parent(std::string_view node, std::optional<std::string_view> parent,
                  std::optional<std::int32_t> megatron_micro_step = std::nullopt);

  bool empty() const;
  /// Tensors that were added and not taken.
  std::size_t tensor_count() const;
  /// What was collected, in the order of the entries; nothing is left.
  DumpStep take();

 private:
  struct SectionRun {
    DumpSection section;
    std::uint32_t first_tensor;
    std::uint32_t tensor_count;
    std::uint32_t next;  // run of the same entry
  };
  struct Entry {
    std::string_view name;
    bool is_recompute = false;
    std::uint32_t first_run = UINT32_MAX;
  };

  static std::size_t grown(std::size_t capacity, std::size_t needed);
  static bool moves_to_end(std::string_view entry);
  bool is_same(const SectionRun& run, const Section& section) const;
  void put(Entry& entry, const Section& section);

  const DumpStatistics statistics_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // an empty name: moved or removed
  std::vector<SectionRun> runs_;
  std::vector<DumpTensor> tensors_;
  std::vector<double> values_;
  std::size_t replaced_tensors_ = 0;
  std::vector<ConstructNode> construct_;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::unordered_map<const char*, std::uint32_t> entry_of_{&nodes_};
  std::pmr::unordered_map<const char*, std::uint32_t> node_of_{&nodes_};
};

}  // namespace trendprobe
