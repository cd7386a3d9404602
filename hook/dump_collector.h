// Collects dump data in place of msProbe's DataCollector
// (core/dump/data_dump/data_collector.py): its hooks call these methods, and what they are given is
// named, measured and handed to the recorder without a Python object for a tensor.
//
// Which tensors are looked at and what they are called is msProbe's rule throughout; each method
// names the one that it stands for.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "hook/device_slab.h"
#include "hook/dump_step_builder.h"
#include "hook/record_sink.h"

namespace trendprobe {

/// What of msProbe's configuration decides what is collected, and the Python functions for what is
/// rare.
struct DumpCollectorOptions {
  DumpStatistics statistics;
  bool forward_input = true;
  bool forward_output = true;
  bool backward_input = true;
  bool backward_output = true;
  /// Module tree: extra_info at level L0 or mix.
  bool construct = true;
  /// At level mix APIs are nodes of the tree, too.
  bool apis_in_construct = false;
  /// should_collect(name, pid); None: everything is collected.
  pybind11::object should_collect;
  /// Its answer depends on the name alone, not on what was called before.
  bool should_collect_by_name = false;
  /// A scope whose check(name) decides on gradients of parameters, or None.
  pybind11::object scope;
  /// has_ignore_rule(name) and apply_ignore_rule(name, value, "input" or "output").
  pybind11::object has_ignore_rule;
  pybind11::object apply_ignore_rule;
  /// tensors_in(value): a list of (what is appended to the name, tensor or values), or None where a
  /// value of this type never holds a tensor.
  pybind11::object tensors_in;
  /// plain_tensor(tensor): what is to be measured in place of a tensor of a special kind, or None.
  pybind11::object plain_tensor;
  /// micro_step(): Megatron's, or None without Megatron.
  pybind11::object micro_step;
  /// on_error(exception): takes what one of the other functions, or the collector itself, raised.
  pybind11::object on_error;
};

/// Called with the interpreter lock held. Methods throw what their Python functions throw,
/// pybind11::error_already_set and pybind11::cast_error where msProbe's objects are not what they
/// were made for, std::bad_alloc and c10::Error.
class DumpCollector {
 public:
  /// `recorder` is a trendprobe.Recorder, `collector` the DataCollector that this one stands in
  /// for.
  DumpCollector(pybind11::object recorder, pybind11::object collector,
                DumpCollectorOptions options);

  /// Of the arguments of a module's or API's call.
  void forward_input(const pybind11::str& name, const pybind11::handle& pid,
                     const pybind11::handle& inputs_outputs);
  /// Of its output, and of the parameters where the call is a module's.
  void forward_output(const pybind11::str& name, const pybind11::handle& module,
                      const pybind11::handle& pid, const pybind11::handle& inputs_outputs);
  /// Of a backward call's gradients.
  void backward(const pybind11::str& name, const pybind11::handle& pid,
                const pybind11::handle& inputs_outputs);
  /// Of one parameter's gradient.
  void parameter_gradient(const pybind11::str& name, const pybind11::str& parameter,
                          std::int64_t pid, const pybind11::handle& gradient,
                          const pybind11::str& index);

  /// No tensor was measured since the last step.
  bool is_empty() const { return builder_.tensor_count() == 0; }
  /// Hands the step to the recorder, if anything was collected. Returns false if it was dropped.
  bool submit(std::int64_t training_step, bool complete);

  const pybind11::object& on_error() const { return options_.on_error; }

  /// For Python's garbage collector.
  int traverse(visitproc visit, void* argument) const;
  void clear();

 private:
  struct Name {
    std::string_view text;
    std::optional<bool> has_ignore_rule;
    std::optional<bool> is_collected;
  };
  class Walk;

  MeasureAlso also() const;
  Name& name_of(const pybind11::handle& name);
  std::string_view interned(std::string_view text);
  bool is_collected(Name& name, const pybind11::str& text, const pybind11::handle& pid);
  pybind11::object without_ignored(Name& name, const pybind11::str& text, pybind11::object value,
                                   const char* input_or_output);
  std::optional<std::int32_t> megatron_micro_step();
  void update_construct(std::string_view name);
  void take_module_nodes();
  void set_parent(std::string_view node, const pybind11::handle& parent);

  DumpCollectorOptions options_;
  pybind11::object recorder_;
  pybind11::object collector_;
  pybind11::object module_processor_;
  pybind11::object backward_module_names_;
  RecordSink* sink_;
  DumpStepBuilder builder_;
  DeviceSlab slab_;
  std::unordered_map<std::string_view, Name> names_;
  /// Types whose values never hold a tensor; each is referenced, so that no other takes its place.
  std::unordered_set<PyTypeObject*> without_tensors_;
  pybind11::object module_nodes_;  // msProbe's dict
  pybind11::ssize_t known_module_nodes_ = 0;
  std::array<bool, 2> has_status_node_{};
};

/// Defines trendprobe._tensor_stats.DumpCollector.
void define_dump_collector(pybind11::module_& module);

}  // namespace trendprobe
