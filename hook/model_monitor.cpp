#include "hook/model_monitor.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <pthread.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <exception>
#include <unordered_set>
#include <utility>

#include "hook/dump_values.h"
#include "hook/torch_tensor_stats.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// A step that is never ended must not fill the memory: this is 100 MB or more.
constexpr std::size_t kMaxTensors = std::size_t{1} << 21;

std::atomic<int> fork_count{0};
std::atomic<std::uint64_t> monitor_count{0};

// A lock that another thread held when the process was forked stays locked in the child.
int forks_so_far() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++fork_count; });
  static_cast<void>(registered);
  return fork_count;
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

bool has_fractions(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

}  // namespace

struct ModelMonitor::Parameter {
  std::string_view suffix;        // ".weight"
  std::string_view value_suffix;  // ".parameters.weight"
  bool requires_grad = false;
  std::string_view path;            // "layers.0.weight", or empty
  std::vector<double> unreduced{};  // of the last micro-batch of this step
  bool has_gradient = false;
};

/// Tensors of one section, with their values.
struct ModelMonitor::Rows {
  std::vector<DumpTensor> tensors;
  std::vector<double> values;

  DumpStepBuilder::Section as(DumpSection section) const { return {section, tensors, values}; }

  /// Adds tensors that are not there yet.
  void put(const Rows& others) {
    if (others.tensors.empty()) return;
    const std::size_t width = others.values.size() / others.tensors.size();
    for (std::size_t i = 0; i < others.tensors.size(); ++i) {
      const std::string_view suffix = others.tensors[i].suffix;
      if (std::any_of(tensors.begin(), tensors.end(), [&](const DumpTensor& tensor) {
            return tensor.suffix.data() == suffix.data();
          })) {
        continue;
      }
      tensors.push_back(others.tensors[i]);
      const auto first = others.values.begin() + static_cast<std::ptrdiff_t>(i * width);
      values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
  }
};

struct ModelMonitor::Module {
  std::string name;
  bool is_root = false;
  std::string unwatched;
  std::vector<Parameter> parameters;
  // By call within the step; they outlast it.
  std::vector<std::string_view> forward_names;
  std::vector<std::string_view> backward_names;
  std::vector<std::string_view> gradient_names;
  // Of this step.
  std::uint32_t calls = 0;
  Rows values;  // of parameters whose module was not seen to run
  std::optional<std::uint32_t> first_gradient;
  std::uint32_t gradient_passes = 0;
  // Ever.
  bool has_run = false;
  bool has_output_that_requires_grad = false;
  bool has_gradient = false;
};

struct ModelMonitor::MonitorRows {
  std::string metric;
  std::vector<MonitorBlock::Row> rows;
  std::vector<double> values;
};

/// A call that has begun and not ended, of this thread.
struct ModelMonitor::Frame {
  struct Input {
    Edge edge;
    std::uint32_t position;  // among the arguments that require gradients
  };
  std::uint64_t monitor = 0;  // its number: another may get its address
  ModuleId module = 0;
  std::uint32_t call = 0;
  bool is_recorded = false;
  bool is_recompute = false;
  std::string_view name;
  std::uint64_t first_sequence = 0;
  std::vector<Input> inputs;
};

/// Keeps errors from the training and counts the time.
class ModelMonitor::Guard {
 public:
  explicit Guard(ModelMonitor& monitor) : monitor_(monitor), stopwatch_(monitor) {}

  template <typename Action>
  void run(Action&& action) noexcept {
    try {
      action();
    } catch (const std::exception& error) {
      monitor_.report(error.what());
    } catch (...) {
      monitor_.report("unknown error");
    }
  }

 private:
  ModelMonitor& monitor_;
  Stopwatch stopwatch_;
};

/// The gradients of one call of a module, which come in any order and any thread, or not at all.
class BackwardCall : public std::enable_shared_from_this<BackwardCall> {
 public:
  BackwardCall(std::shared_ptr<ModelMonitor> monitor, ModelMonitor::ModuleId module,
               std::string_view name, std::size_t outputs, std::size_t inputs)
      : monitor_(std::move(monitor)),
        module_(module),
        name_(name),
        outputs_(outputs),
        inputs_(inputs) {}

  void pass_through(std::size_t output, std::size_t input, std::uint32_t position) {
    inputs_[input].position = position;
    passed_through_.emplace_back(output, input);
  }

  void expect_input(std::size_t slot, std::uint32_t position) {
    inputs_[slot].position = position;
    ++inputs_[slot].expected;
  }

  /// The whole gradient of an output.
  void add_output(std::size_t slot, const at::Tensor& gradient) noexcept {
    if (!gradient.defined() || !monitor_->is_active()) return;
    ModelMonitor::Guard guard(*monitor_);
    guard.run([&] {
      begin();
      record(outputs_[slot], gradient, monitor_->input_suffix(slot));
      write(DumpSection::kGradInput, outputs_);
      // An input that is an output as well (Identity): it passes the gradient on.
      for (const auto& [output, input] : passed_through_) {
        if (output == slot) finish(input, gradient);
      }
    });
  }

  /// What one node of the module's graph adds to the gradient of an input.
  void add_input(std::size_t slot, const at::Tensor& part) noexcept {
    if (!monitor_->is_active()) return;
    ModelMonitor::Guard guard(*monitor_);
    guard.run([&] {
      at::Tensor gradient;
      {
        const std::lock_guard lock(mutex_);
        Slot& input = inputs_[slot];
        ++input.received;
        if (part.defined()) {
          if (input.expected == 1) {
            gradient = part;
          } else {
            const OutsideModes outside;
            // A tensor without a graph of its own: it must not keep the module's graph alive.
            input.sum = input.sum.defined() ? input.sum + part : part.detach();
          }
        }
        if (input.received < input.expected) {
          wait();
          return;
        }
        if (input.sum.defined()) gradient = std::exchange(input.sum, {});
        input.received = 0;
      }
      finish(slot, gradient);
    });
  }

  /// The step is over: what has not come by now does not come.
  void end_step() {
    for (std::size_t slot = 0; slot < inputs_.size(); ++slot) {
      at::Tensor gradient;
      {
        const std::lock_guard lock(mutex_);
        gradient = std::exchange(inputs_[slot].sum, {});
        inputs_[slot].received = 0;
        is_waiting_ = false;
      }
      finish(slot, gradient);
    }
  }

 private:
  struct Slot {
    std::uint32_t position = 0;
    std::uint32_t expected = 0;
    std::uint32_t received = 0;
    at::Tensor sum;
    ModelMonitor::Rows rows;  // at most one
  };

  void begin() {
    const std::lock_guard lock(monitor_->mutex_);
    monitor_->latest_backward_ = name_;
    monitor_->modules_[module_]->has_gradient = true;
    monitor_->builder_.set_parent(name_, std::nullopt);
  }

  void wait() {
    if (is_waiting_) return;
    is_waiting_ = true;
    const std::lock_guard lock(monitor_->mutex_);
    monitor_->waiting_.push_back(shared_from_this());
  }

  void finish(std::size_t slot, const at::Tensor& gradient) {
    if (!gradient.defined()) return;
    record(inputs_[slot], gradient, monitor_->output_suffix(inputs_[slot].position));
    write(DumpSection::kGradOutput, inputs_);
  }

  void record(Slot& slot, const at::Tensor& gradient, std::string_view suffix) {
    ModelMonitor::Rows rows;
    monitor_->append(name_, suffix, gradient, rows);
    const std::lock_guard lock(mutex_);
    slot.rows = std::move(rows);
  }

  // The section again, with all that has come.
  void write(DumpSection section, const std::vector<Slot>& slots) {
    ModelMonitor::Rows all;
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : slots) {
      all.tensors.insert(all.tensors.end(), slot.rows.tensors.begin(), slot.rows.tensors.end());
      all.values.insert(all.values.end(), slot.rows.values.begin(), slot.rows.values.end());
    }
    const std::array sections = {all.as(section)};
    monitor_->builder_.add(name_, sections, false);
  }

  const std::shared_ptr<ModelMonitor> monitor_;
  const ModelMonitor::ModuleId module_;
  const std::string_view name_;
  std::mutex mutex_;
  bool is_waiting_ = false;
  std::vector<Slot> outputs_;
  std::vector<Slot> inputs_;
  std::vector<std::pair<std::size_t, std::size_t>> passed_through_;  // (output, input)
};

namespace {

/// Sees the gradient of an output before the node that made it.
struct OutputHook final : torch::autograd::FunctionPreHook {
  OutputHook(std::shared_ptr<BackwardCall> owner, std::size_t output, std::uint32_t number)
      : call(std::move(owner)), slot(output), position(number) {}

  variable_list operator()(const variable_list& gradients) override {
    if (position < gradients.size()) call->add_output(slot, gradients[position]);
    return gradients;
  }
  // A compiled backward pass runs without it.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {}

  std::shared_ptr<BackwardCall> call;
  std::size_t slot;
  std::uint32_t position;
};

/// Sees what a node adds to the gradients of a module's inputs.
struct InputHook final : torch::autograd::FunctionPostHook {
  explicit InputHook(std::shared_ptr<BackwardCall> owner) : call(std::move(owner)) {}

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    for (const auto& [edge, slot] : edges) {
      call->add_input(slot, edge < outputs.size() ? outputs[edge] : at::Tensor());
    }
    return outputs;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {}

  std::shared_ptr<BackwardCall> call;
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // (edge of the node, slot of the call)
};

}  // namespace

ModelMonitor::ModelMonitor(std::shared_ptr<RecordSink> sink, Options options)
    : number_(++monitor_count),
      sink_(std::move(sink)),
      options_(std::move(options)),
      also_(options_.statistics.contains(DumpStatistic::kStd) ? MeasureAlso::kStandardDeviation
                                                              : MeasureAlso::kNothing),
      forks_(forks_so_far()),
      builder_(options_.statistics) {}

ModelMonitor::~ModelMonitor() = default;

int& ModelMonitor::Stopwatch::depth() {
  thread_local int depth = 0;
  return depth;
}

ModelMonitor::Stopwatch::Stopwatch(ModelMonitor& monitor) : monitor_(monitor) {
  if (depth()++ == 0) start_ = std::chrono::steady_clock::now();
}

ModelMonitor::Stopwatch::~Stopwatch() {
  if (--depth() > 0) return;
  monitor_.nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::steady_clock::now() - start_)
                               .count();
}

bool ModelMonitor::is_active() const noexcept { return !closed_ && forks_ == fork_count; }

std::vector<ModelMonitor::Frame>& ModelMonitor::frames() {
  thread_local std::vector<Frame> frames;
  return frames;
}

const ModelMonitor::Frame* ModelMonitor::innermost() const {
  const std::vector<Frame>& all = frames();
  const auto found = std::find_if(all.rbegin(), all.rend(),
                                  [this](const Frame& frame) { return frame.monitor == number_; });
  return found == all.rend() ? nullptr : &*found;
}

// An exception that is no Exception (KeyboardInterrupt) leaves calls without a notice.
void ModelMonitor::forget_frames() const {
  std::vector<Frame>& all = frames();
  all.erase(std::remove_if(all.begin(), all.end(),
                           [this](const Frame& frame) { return frame.monitor == number_; }),
            all.end());
}

void ModelMonitor::report(const char* what) noexcept {
  const std::lock_guard lock(mutex_);
  if (has_failed_) return;
  has_failed_ = true;
  try {
    error_ = what;
  } catch (const std::exception&) {
    // Not even memory for the message.
  }
}

ModelMonitor::ModuleId ModelMonitor::add_module(std::string_view name, bool is_root) {
  const std::lock_guard lock(mutex_);
  auto module = std::make_unique<Module>();
  module->name = name;
  module->is_root = is_root;
  modules_.push_back(std::move(module));
  return static_cast<ModuleId>(modules_.size() - 1);
}

std::uint32_t ModelMonitor::add_parameter(ModuleId module, std::string_view name,
                                          bool requires_grad, std::string_view path) {
  const std::string_view suffix = intern("." + std::string(name));
  const std::string_view value_suffix = intern(".parameters." + std::string(name));
  const std::string_view kept_path = path.empty() ? path : intern(path);
  const std::lock_guard lock(mutex_);
  std::vector<Parameter>& parameters = modules_.at(module)->parameters;
  parameters.push_back({suffix, value_suffix, requires_grad, kept_path});
  return static_cast<std::uint32_t>(parameters.size() - 1);
}

void ModelMonitor::set_unwatched(ModuleId module, std::string reason) {
  const std::lock_guard lock(mutex_);
  modules_.at(module)->unwatched = std::move(reason);
}

// The mutex is held. Names of earlier steps are there already.
std::string_view ModelMonitor::call_name(const Module& module, std::string_view direction,
                                         std::vector<std::string_view>& names, std::uint32_t call) {
  while (names.size() <= call) {
    std::string name = module.name;
    name += direction;
    name += std::to_string(names.size());
    names.push_back(intern(name));
  }
  return names[call];
}

std::string_view ModelMonitor::numbered(std::string_view kind, std::vector<std::string_view>& names,
                                        std::size_t position) {
  const std::lock_guard lock(mutex_);
  while (names.size() <= position) {
    names.push_back(intern(std::string(kind) + std::to_string(names.size())));
  }
  return names[position];
}

bool ModelMonitor::measure(std::string_view entry, std::string_view suffix,
                           const at::Tensor& tensor, std::span<double> values) {
  if (!tensor.defined()) return false;
  std::string target;
  const auto name_target = [&] {
    target = entry.substr(0, entry.rfind('.'));
    target += suffix;
  };
  if (any_switched_off_) {
    name_target();
    const std::lock_guard lock(mutex_);
    if (switched_off_.contains(target)) return false;
  }
  at::Tensor shown = tensor;
  if (tensor.key_set().has(c10::DispatchKey::Python)) {
    if (!options_.local_tensor) return false;
    shown = options_.local_tensor(tensor);
    if (!shown.defined()) return false;
  }
  ++tensors_;
  const bool is_floating = has_fractions(shown);
  if (shown.is_cpu() && !options_.main_memory_is_device) {
    const at::Tensor found = measurable(shown);
    if (!found.defined()) return false;
    const std::optional<TensorStatistics> measured = trendprobe::measure(found, also_);
    if (!measured.has_value()) return false;
    write_dump_values(*measured, is_floating, options_.statistics, values);
    return true;
  }
  const DeviceSlab::Added added = slab_.add(shown, also_);
  if (added.outcome == DeviceSlab::Outcome::kQueued) {
    write_pending_values(added.row, is_floating, options_.statistics, values);
    return true;
  }
  if (added.outcome == DeviceSlab::Outcome::kFailed) {
    name_target();
    const std::lock_guard lock(mutex_);
    switched_off_.insert(std::move(target));
    any_switched_off_ = true;
  }
  return false;
}

void ModelMonitor::append(std::string_view entry, std::string_view suffix, const at::Tensor& tensor,
                          Rows& rows) {
  const std::size_t before = rows.values.size();
  rows.values.resize(before + options_.statistics.size());
  bool has_values = false;
  try {
    has_values = measure(entry, suffix, tensor, std::span(rows.values).subspan(before));
    if (has_values) rows.tensors.push_back({suffix});
  } catch (...) {
    rows.values.resize(before);
    throw;
  }
  if (!has_values) rows.values.resize(before);
}

void ModelMonitor::begin_call(ModuleId module, std::span<const Tensor> arguments,
                              bool is_training) noexcept {
  if (!is_active()) return;
  Guard guard(*this);
  guard.run([&] {
    Frame frame;
    frame.monitor = number_;
    frame.module = module;
    const bool with_gradients = at::GradMode::is_enabled();
    frame.is_recompute = in_backward();
    bool is_root = false;
    {
      const std::lock_guard lock(mutex_);
      is_root = modules_.at(module)->is_root;
    }
    // Without the mutex: what a graph holds may want Python's lock when it is freed.
    if (is_root && !frame.is_recompute) forget_frames();
    {
      const Frame* parent = innermost();
      const std::lock_guard lock(mutex_);
      Module& called = *modules_[module];
      frame.is_recorded = parent != nullptr
                              ? parent->is_recorded
                              : frame.is_recompute || with_gradients || (is_training && !is_root);
      if (frame.is_recorded && parent == nullptr && builder_.tensor_count() > kMaxTensors) {
        is_full_ = true;
        frame.is_recorded = false;
      }
      if (frame.is_recorded) {
        called.has_run = true;
        frame.call = called.calls++;
        frame.name = call_name(called, ".forward.", called.forward_names, frame.call);
        std::optional<std::string_view> parent_name;
        if (parent != nullptr) {
          parent_name = parent->name;
        } else if (frame.is_recompute && !latest_backward_.empty()) {
          parent_name = latest_backward_;
        }
        builder_.set_parent(frame.name, parent_name);
      }
    }
    if (frame.is_recorded && !is_root) {
      frame.first_sequence = at::sequence_number::peek();
      Rows positional;
      Rows named;
      for (const Tensor& argument : arguments) {
        append(frame.name, argument.suffix, argument.tensor,
               argument.is_positional ? positional : named);
      }
      const std::array sections = {positional.as(DumpSection::kInputArgs),
                                   named.as(DumpSection::kInputKwargs)};
      builder_.add(frame.name, sections, frame.is_recompute);
      std::uint32_t position = 0;
      for (const Tensor& argument : arguments) {
        if (!with_gradients || !argument.is_positional || !argument.tensor.requires_grad()) {
          continue;
        }
        frame.inputs.push_back({torch::autograd::impl::gradient_edge(argument.tensor), position++});
      }
    }
    frames().push_back(std::move(frame));
  });
}

void ModelMonitor::end_call(ModuleId module, std::span<const Tensor> results,
                            std::span<const Tensor> parameters, bool has_result) noexcept {
  if (!is_active()) return;
  Guard guard(*this);
  guard.run([&] {
    std::vector<Frame>& all = frames();
    const auto found = std::find_if(all.rbegin(), all.rend(), [&](const Frame& frame) {
      return frame.monitor == number_ && frame.module == module;
    });
    if (found == all.rend()) return;
    const Frame frame = std::move(*found);
    // With those inside it that were left without notice.
    const auto first = std::prev(found.base());
    all.erase(std::remove_if(first, all.end(),
                             [this](const Frame& other) { return other.monitor == number_; }),
              all.end());
    if (!frame.is_recorded || (!has_result && !frame.is_recompute)) return;
    {
      const std::lock_guard lock(mutex_);
      if (modules_.at(module)->is_root) return;
    }
    Rows output;
    Rows values;
    for (const Tensor& result : results) append(frame.name, result.suffix, result.tensor, output);
    for (const Tensor& parameter : parameters) {
      append(frame.name, parameter.suffix, parameter.tensor, values);
    }
    const std::array sections = {output.as(DumpSection::kOutput),
                                 values.as(DumpSection::kParameters)};
    builder_.add(frame.name, sections, frame.is_recompute);
    if (at::GradMode::is_enabled()) watch_gradients(frame, results);
  });
}

void ModelMonitor::watch_gradients(const Frame& frame, std::span<const Tensor> results) {
  std::vector<Edge> outputs;
  for (const Tensor& result : results) {
    if (result.tensor.requires_grad()) {
      outputs.push_back(torch::autograd::impl::gradient_edge(result.tensor));
    }
  }
  if (outputs.empty()) return;
  std::string_view name;
  {
    const std::lock_guard lock(mutex_);
    Module& module = *modules_[frame.module];
    module.has_output_that_requires_grad = true;
    name = call_name(module, ".backward.", module.backward_names, frame.call);
  }
  const auto call = std::make_shared<BackwardCall>(shared_from_this(), frame.module, name,
                                                   outputs.size(), frame.inputs.size());
  // Nodes that the module's forward made, as far as gradients of its outputs reach them.
  const auto is_inside = [&](const Node& node) {
    return node.sequence_nr() >= frame.first_sequence && node.sequence_nr() != UINT64_MAX;
  };
  std::vector<Node*> open;
  std::unordered_set<Node*> seen;
  const auto visit = [&](Node* node) {
    if (is_inside(*node) && seen.insert(node).second) open.push_back(node);
  };
  for (std::size_t slot = 0; slot < outputs.size(); ++slot) {
    const Edge& edge = outputs[slot];
    // A parameter that is given back has no node of its own; its hook would outlast the call.
    if (edge.function == nullptr || edge.function->sequence_nr() == UINT64_MAX) continue;
    for (std::size_t input = 0; input < frame.inputs.size(); ++input) {
      if (frame.inputs[input].edge == edge) {
        call->pass_through(slot, input, frame.inputs[input].position);
      }
    }
    edge.function->add_tensor_pre_hook(std::make_unique<OutputHook>(call, slot, edge.input_nr));
    if (!frame.inputs.empty()) visit(edge.function.get());
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    std::unique_ptr<InputHook> hook;
    for (std::size_t i = 0; i < node->num_outputs(); ++i) {
      const Edge& edge = node->next_edge(i);
      if (edge.function == nullptr) continue;
      const auto input =
          std::find_if(frame.inputs.begin(), frame.inputs.end(),
                       [&](const Frame::Input& candidate) { return candidate.edge == edge; });
      if (input == frame.inputs.end()) {
        visit(edge.function.get());
        continue;
      }
      if (!hook) hook = std::make_unique<InputHook>(call);
      const auto slot = static_cast<std::size_t>(input - frame.inputs.begin());
      hook->edges.emplace_back(i, slot);
      call->expect_input(slot, input->position);
    }
    if (hook) node->add_post_hook(std::move(hook));
  }
}

void ModelMonitor::add_gradient(std::span<const Owner> owners, const at::Tensor& parameter,
                                const at::Tensor& gradient) noexcept {
  if (!is_active() || owners.empty()) return;
  Guard guard(*this);
  guard.run([&] {
    std::vector<double> values(options_.statistics.size());
    bool has_values = false;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      std::string_view name;
      std::string_view suffix;
      std::string_view value_suffix;
      std::string_view unseen_call;
      {
        const std::lock_guard lock(mutex_);
        Module& module = *modules_.at(owners[i].module);
        Parameter& owned = module.parameters.at(owners[i].parameter);
        // As msProbe counts: a pass begins with the parameter that came first.
        if (!module.first_gradient.has_value()) {
          module.first_gradient = owners[i].parameter;
        } else if (*module.first_gradient == owners[i].parameter) {
          ++module.gradient_passes;
        }
        name =
            call_name(module, ".parameters_grad.", module.gradient_names, module.gradient_passes);
        suffix = owned.suffix;
        value_suffix = owned.value_suffix;
        if (module.calls == 0) {
          unseen_call = call_name(module, ".forward.", module.forward_names, 0);
        }
      }
      if (i == 0) has_values = measure(name, suffix, gradient, values);
      if (has_values) {
        const std::array tensors = {DumpTensor{suffix}};
        const std::array sections = {
            DumpStepBuilder::Section{DumpSection::kParametersGrad, tensors, values}};
        builder_.add(name, sections, false);
        const std::lock_guard lock(mutex_);
        Parameter& owned = modules_[owners[i].module]->parameters[owners[i].parameter];
        owned.has_gradient = true;
        if (!owned.path.empty()) owned.unreduced = values;
      }
      if (unseen_call.empty()) continue;
      Rows value;
      append(unseen_call, value_suffix, parameter, value);
      const std::lock_guard lock(mutex_);
      Rows& seen = modules_[owners[i].module]->values;
      seen.put(value);
      const std::array sections = {seen.as(DumpSection::kParameters)};
      builder_.add(unseen_call, sections, false);
    }
  });
}

void ModelMonitor::add_monitor_row(std::string_view metric, std::string_view name,
                                   const at::Tensor& tensor) noexcept {
  if (!is_active()) return;
  Guard guard(*this);
  guard.run([&] {
    std::vector<double> values(options_.statistics.size());
    if (!measure(metric, name, tensor, values)) return;
    const std::string_view kept = intern(name);
    const std::lock_guard lock(mutex_);
    auto found =
        std::find_if(monitor_rows_.begin(), monitor_rows_.end(),
                     [&](const MonitorRows& candidate) { return candidate.metric == metric; });
    if (found == monitor_rows_.end()) {
      found = monitor_rows_.insert(monitor_rows_.end(), MonitorRows{std::string(metric), {}, {}});
    }
    found->rows.push_back({kept, 0, 0});
    found->values.insert(found->values.end(), values.begin(), values.end());
  });
}

bool ModelMonitor::step(std::int64_t training_step, bool complete) noexcept {
  if (!is_active()) return false;
  bool is_taken = true;
  {
    Guard guard(*this);
    guard.run([&] {
      forget_frames();
      if (is_full_.exchange(false)) {
        complete = false;
        report("so much was recorded since the last step() that the rest was left out");
      }
      std::vector<std::shared_ptr<BackwardCall>> waiting;
      {
        const std::lock_guard lock(mutex_);
        waiting.swap(waiting_);
      }
      for (const auto& call : waiting) call->end_step();
      std::shared_ptr<DeviceRows> rows;
      try {
        rows = slab_.take();
      } catch (const std::exception& error) {
        report(error.what());
        rows = std::make_shared<DeviceRows>();
      }
      std::vector<MonitorRows> monitor_rows;
      {
        const std::lock_guard lock(mutex_);
        monitor_rows.swap(monitor_rows_);
        MonitorRows unreduced{"grad_unreduced", {}, {}};
        latest_backward_ = {};
        for (const auto& module : modules_) {
          module->calls = 0;
          module->values = {};
          module->first_gradient.reset();
          module->gradient_passes = 0;
          for (Parameter& parameter : module->parameters) {
            if (parameter.unreduced.empty()) continue;
            unreduced.rows.push_back({parameter.path, 0, 0});
            unreduced.values.insert(unreduced.values.end(), parameter.unreduced.begin(),
                                    parameter.unreduced.end());
            parameter.unreduced.clear();
          }
        }
        if (!unreduced.rows.empty()) monitor_rows.push_back(std::move(unreduced));
      }
      DumpStep step = builder_.take();
      if (!step.entries.empty()) {
        ResolveDumpStep resolve;
        if (rows) resolve = [rows](DumpStep& taken) { rows->resolve(taken.values); };
        is_taken = sink_->submit(std::move(step), training_step, complete, std::move(resolve));
      }
      for (MonitorRows& block : monitor_rows) {
        MonitorBlock submission;
        submission.training_step = training_step;
        submission.metric = {RecordKind::kMonitor, std::move(block.metric),
                             options_.statistics.names()};
        submission.rows = std::move(block.rows);
        submission.values = std::move(block.values);
        if (rows) {
          submission.resolve = [rows](std::vector<double>& values) { rows->resolve(values); };
        }
        is_taken = sink_->submit(std::move(submission)) && is_taken;
      }
    });
  }
  const std::lock_guard lock(mutex_);
  last_cost_ = {std::chrono::nanoseconds(nanoseconds_.exchange(0)), tensors_.exchange(0)};
  total_cost_.time += last_cost_.time;
  total_cost_.tensors += last_cost_.tensors;
  return is_taken;
}

void ModelMonitor::close() noexcept {
  if (!is_active()) return;
  closed_ = true;
  std::vector<std::shared_ptr<BackwardCall>> waiting;
  const std::lock_guard lock(mutex_);
  waiting.swap(waiting_);
  monitor_rows_.clear();
}

bool ModelMonitor::is_empty() const { return builder_.empty(); }

bool ModelMonitor::has_run(ModuleId module) const {
  const std::lock_guard lock(mutex_);
  return modules_.at(module)->has_run;
}

std::vector<ModelMonitor::Uncovered> ModelMonitor::coverage() const {
  const std::lock_guard lock(mutex_);
  std::vector<Uncovered> result;
  for (const auto& module : modules_) {
    if (module->is_root) continue;
    if (!module->has_run) {
      result.push_back({module->name + ".forward", !module->unwatched.empty()
                                                       ? module->unwatched
                                                       : "the module was not called"});
    } else if (module->has_output_that_requires_grad && !module->has_gradient) {
      result.push_back({module->name + ".backward", "no gradient reached the module"});
    }
    for (const Parameter& parameter : module->parameters) {
      if (!parameter.requires_grad || parameter.has_gradient) continue;
      result.push_back({module->name + ".parameters_grad" + std::string(parameter.suffix),
                        "no gradient that can be measured was added to the parameter"});
    }
  }
  for (const std::string& target : switched_off_) {
    result.push_back({target, "the device had no memory for its statistics, or lacks an operator"});
  }
  return result;
}

ModelMonitor::Cost ModelMonitor::last_cost() const {
  const std::lock_guard lock(mutex_);
  return last_cost_;
}

ModelMonitor::Cost ModelMonitor::total_cost() const {
  const std::lock_guard lock(mutex_);
  return total_cost_;
}

std::string ModelMonitor::take_error() noexcept {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, {});
}

}  // namespace trendprobe
