// Records what the modules of a model take, give and pass back while it trains, without msProbe:
// the records and names of its L0 dump.
//
// The training computes the same bits as without it: nothing is added to the autograd graph.
// Gradients are read by tensor hooks on the outputs, and by hooks behind the nodes of the graph
// that consume a module's inputs. No Python, no lock of Python's: whoever calls the modules
// (model_monitor_module.cpp, a libtorch program) says when a call begins and ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hook/device_slab.h"
#include "hook/dump_step_builder.h"
#include "hook/record_sink.h"
#include "writer/dump_statistics.h"

namespace trendprobe {

/// Thread-safe. Nothing throws into the training: what fails costs the records of one call, and
/// take_error() tells. In a forked child, and after close(), every call does nothing. Held by
/// std::shared_ptr: the hooks in a graph that is still alive share it.
class ModelMonitor : public std::enable_shared_from_this<ModelMonitor> {
 public:
  /// The tensor that a subclass holds in this process (a DTensor's shard); undefined if there is
  /// none. Called for tensors that intercept operators, in any thread.
  using LocalTensor = std::function<at::Tensor(const at::Tensor&)>;
  using ModuleId = std::uint32_t;

  /// One tensor among a module's arguments or results.
  struct Tensor {
    /// What follows the module in the target's name: ".input.0". From intern().
    std::string_view suffix;
    at::Tensor tensor;
    /// Gradients of arguments are recorded where they are positional, as in msProbe.
    bool is_positional = true;
  };
  /// A target that has no record.
  struct Uncovered {
    std::string target;
    std::string reason;
  };
  struct Cost {
    std::chrono::nanoseconds time{0};
    std::uint64_t tensors = 0;
  };

  struct Options {
    DumpStatistics statistics;
    LocalTensor local_tensor;
    /// Measures tensors in main memory as if they were on a device. For tests.
    bool main_memory_is_device = false;
  };
  /// A parameter and a module that has it; tied ones are had by several.
  struct Owner {
    ModuleId module = 0;
    std::uint32_t parameter = 0;
  };

  explicit ModelMonitor(std::shared_ptr<RecordSink> sink) : ModelMonitor(std::move(sink), {}) {}
  ModelMonitor(std::shared_ptr<RecordSink> sink, Options options);
  ModelMonitor(const ModelMonitor&) = delete;
  ModelMonitor& operator=(const ModelMonitor&) = delete;
  ~ModelMonitor();

  // Before training. These throw std::bad_alloc.

  /// `name` is msProbe's: "Module.<path>.<Class>". A root is not recorded itself; each of its calls
  /// is a micro-step, and a call of it without gradients is no training at all.
  ModuleId add_module(std::string_view name, bool is_root = false);
  /// Returns the parameter's number within the module. `path` is its name in the model where its
  /// gradient is to be recorded as TrainerMon's grad_unreduced, too; else empty.
  std::uint32_t add_parameter(ModuleId module, std::string_view name, bool requires_grad,
                              std::string_view path = {});
  /// Says why a module can't be watched.
  void set_unwatched(ModuleId module, std::string reason);
  /// Keeps the suffix of a tensor; those of the n-th argument and result are kept already.
  std::string_view intern(std::string_view suffix) { return sink_->intern(suffix); }
  std::string_view input_suffix(std::size_t n) { return numbered(".input.", input_suffixes_, n); }
  std::string_view output_suffix(std::size_t n) {
    return numbered(".output.", output_suffixes_, n);
  }

  // While it trains.

  /// A module is about to run in this thread. `is_training` is the module's mode.
  void begin_call(ModuleId module, std::span<const Tensor> arguments, bool is_training) noexcept;
  /// It has run; `results` are its outputs, `parameters` the tensors of those named. Without
  /// `has_result` it was left by an exception: as in msProbe, its parameters are still recorded if
  /// it is a recomputation, which torch ends in that way once it has all that it needs.
  void end_call(ModuleId module, std::span<const Tensor> results,
                std::span<const Tensor> parameters, bool has_result = true) noexcept;
  /// A backward pass has added to the gradient of a parameter, which is `gradient` now. Where no
  /// call of the module was seen in this step (it is compiled, say), the parameter itself is
  /// recorded here.
  void add_gradient(std::span<const Owner> owners, const at::Tensor& parameter,
                    const at::Tensor& gradient) noexcept;
  /// Measures a tensor for a monitor record of this step.
  void add_monitor_row(std::string_view metric, std::string_view name,
                       const at::Tensor& tensor) noexcept;
  /// Ends the training step and hands it over. False if the recorder dropped it. Without it
  /// recording stops after some two million tensors, and take_error() says so.
  bool step(std::int64_t training_step, bool complete = true) noexcept;
  /// Forgets what was not handed over; nothing is recorded from now on.
  void close() noexcept;

  /// Counts the time for which it lives as the monitor's cost: of who calls the modules. Calls
  /// inside count only once.
  class Stopwatch {
   public:
    explicit Stopwatch(ModelMonitor& monitor);
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch();

   private:
    static int& depth();

    ModelMonitor& monitor_;
    std::chrono::steady_clock::time_point start_;
  };

  // What the user wants to know.

  /// True if nothing was recorded since the last step.
  bool is_empty() const;
  /// True if any call of the module has been seen.
  bool has_run(ModuleId module) const;
  std::vector<Uncovered> coverage() const;
  /// Of the last step, and of all.
  Cost last_cost() const;
  Cost total_cost() const;
  /// The first error, if it was not taken yet; else empty.
  std::string take_error() noexcept;
  /// An error of who calls the modules.
  void report(const char* what) noexcept;

 private:
  friend class BackwardCall;
  struct Parameter;
  struct Module;
  struct Frame;
  struct Rows;
  struct MonitorRows;
  class Guard;

  static std::vector<Frame>& frames();
  const Frame* innermost() const;
  void forget_frames() const;
  bool is_active() const noexcept;
  std::string_view call_name(const Module& module, std::string_view direction,
                             std::vector<std::string_view>& names, std::uint32_t call);
  std::string_view numbered(std::string_view kind, std::vector<std::string_view>& names,
                            std::size_t position);
  bool measure(std::string_view entry, std::string_view suffix, const at::Tensor& tensor,
               std::span<double> values);
  /// Appends the tensor, if it has values.
  void append(std::string_view entry, std::string_view suffix, const at::Tensor& tensor,
              Rows& rows);
  void watch_gradients(const Frame& frame, std::span<const Tensor> results);

  const std::uint64_t number_;
  const std::shared_ptr<RecordSink> sink_;
  const Options options_;
  const MeasureAlso also_;
  const int forks_;
  std::atomic<bool> closed_{false};

  DumpStepBuilder builder_;
  DeviceSlab slab_;
  std::atomic<std::int64_t> nanoseconds_{0};
  std::atomic<std::uint64_t> tensors_{0};

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Module>> modules_;
  std::vector<MonitorRows> monitor_rows_;
  std::vector<std::string_view> input_suffixes_;
  std::vector<std::string_view> output_suffixes_;
  /// Backward calls that wait for further gradients of their inputs.
  std::vector<std::shared_ptr<class BackwardCall>> waiting_;
  /// The backward call that began last: a recomputation belongs to it.
  std::string_view latest_backward_;
  std::set<std::string, std::less<>> switched_off_;
  std::atomic<bool> any_switched_off_{false};
  std::atomic<bool> is_full_{false};
  Cost last_cost_;
  Cost total_cost_;
  std::string error_;
  bool has_failed_ = false;
};

}  // namespace trendprobe
