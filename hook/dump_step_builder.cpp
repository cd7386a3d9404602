#include "hook/dump_step_builder.h"

#include <algorithm>
#include <utility>

namespace trendprobe {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

}  // namespace

void DumpStepBuilder::add(std::string_view entry, std::span<const Section> sections,
                          bool is_recompute) {
  const std::lock_guard lock(mutex_);
  // Everything that can throw comes before anything is changed.
  std::size_t added = 0;
  for (const Section& section : sections) added += section.tensors.size();
  tensors_.reserve(grown(tensors_.capacity(), tensors_.size() + added));
  values_.reserve(grown(values_.capacity(), values_.size() + added * statistics_.size()));
  runs_.reserve(grown(runs_.capacity(), runs_.size() + sections.size()));
  entries_.reserve(grown(entries_.capacity(), entries_.size() + 1));
  const auto [found, is_new] =
      entry_of_.try_emplace(entry.data(), static_cast<std::uint32_t>(entries_.size()));
  if (is_new) {
    entries_.push_back({entry, is_recompute, kNone});
  } else if (moves_to_end(entry) && found->second + 1 != entries_.size()) {
    const Entry before = std::exchange(entries_[found->second], Entry{});
    found->second = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back(before);
  }
  Entry& target = entries_[found->second];
  target.is_recompute = target.is_recompute || is_recompute;
  for (const Section& section : sections) put(target, section);
}

std::size_t DumpStepBuilder::grown(std::size_t capacity, std::size_t needed) {
  return needed <= capacity ? capacity : std::max(needed, capacity * 2);
}

bool DumpStepBuilder::moves_to_end(std::string_view entry) {
  return entry.starts_with("Module.") || entry.starts_with("Cell.");
}

bool DumpStepBuilder::is_same(const SectionRun& run, const Section& section) const {
  if (run.section != section.section) return false;
  if (section.section != DumpSection::kParametersGrad) return true;
  return run.tensor_count != 0 && !section.tensors.empty() &&
         tensors_[run.first_tensor].suffix.data() == section.tensors.front().suffix.data();
}

void DumpStepBuilder::put(Entry& entry, const Section& section) {
  std::uint32_t* link = &entry.first_run;
  while (*link != kNone && !is_same(runs_[*link], section)) link = &runs_[*link].next;
  if (*link == kNone) {
    *link = static_cast<std::uint32_t>(runs_.size());
    runs_.push_back({section.section, 0, 0, kNone});  // reserved: the link stays where it is
  }
  SectionRun& run = runs_[*link];
  replaced_tensors_ += run.tensor_count;
  run.first_tensor = static_cast<std::uint32_t>(tensors_.size());
  run.tensor_count = static_cast<std::uint32_t>(section.tensors.size());
  tensors_.insert(tensors_.end(), section.tensors.begin(), section.tensors.end());
  values_.insert(values_.end(), section.values.begin(), section.values.end());
}

void DumpStepBuilder::remove(std::string_view entry) {
  const std::lock_guard lock(mutex_);
  const auto found = entry_of_.find(entry.data());
  if (found == entry_of_.end()) return;
  for (std::uint32_t i = entries_[found->second].first_run; i != kNone; i = runs_[i].next) {
    replaced_tensors_ += runs_[i].tensor_count;
  }
  entries_[found->second] = Entry{};
  entry_of_.erase(found);
}

void DumpStepBuilder::set_parent(std::string_view node, std::optional<std::string_view> parent,
                                 std::optional<std::int32_t> megatron_micro_step) {
  const std::lock_guard lock(mutex_);
  construct_.reserve(grown(construct_.capacity(), construct_.size() + 1));
  const auto [found, is_new] =
      node_of_.try_emplace(node.data(), static_cast<std::uint32_t>(construct_.size()));
  if (is_new) construct_.emplace_back();
  construct_[found->second] = {node, parent, megatron_micro_step};
}

bool DumpStepBuilder::empty() const {
  const std::lock_guard lock(mutex_);
  return entry_of_.empty() && construct_.empty();
}

std::size_t DumpStepBuilder::tensor_count() const {
  const std::lock_guard lock(mutex_);
  return tensors_.size() - replaced_tensors_;
}

DumpStep DumpStepBuilder::take() {
  const std::lock_guard lock(mutex_);
  DumpStep step;
  step.entries.reserve(entry_of_.size());
  const std::size_t width = statistics_.size();
  step.tensors.reserve(tensors_.size() - replaced_tensors_);
  step.statistics = statistics_;
  step.values.reserve(step.tensors.capacity() * width);
  step.construct = construct_;
  step.has_construct = !construct_.empty();
  for (const Entry& entry : entries_) {
    if (entry.name.data() == nullptr) continue;
    const auto first = static_cast<std::uint32_t>(step.tensors.size());
    for (std::uint32_t i = entry.first_run; i != kNone; i = runs_[i].next) {
      const auto begin = tensors_.begin() + runs_[i].first_tensor;
      step.tensors.insert(step.tensors.end(), begin, begin + runs_[i].tensor_count);
      const double* values = values_.data() + runs_[i].first_tensor * width;
      step.values.insert(step.values.end(), values, values + runs_[i].tensor_count * width);
    }
    step.entries.push_back({entry.name, entry.is_recompute, first,
                            static_cast<std::uint32_t>(step.tensors.size()) - first});
  }
  entries_.clear();
  runs_.clear();
  tensors_.clear();
  values_.clear();
  replaced_tensors_ = 0;
  construct_.clear();
  entry_of_.clear();
  node_of_.clear();
  return step;
}

}  // namespace trendprobe
