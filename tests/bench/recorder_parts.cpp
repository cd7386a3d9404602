// The recorder's parts, each on its own, for bench_recorder.py: no Python, no torch.
//
//   recorder_parts producer DIRECTORY STEPS RECORDS
//       ns a record that the training thread spends on collecting a step and handing it over, with
//       the recorder at rest, and with the recorder writing the step before
//   recorder_parts writer DIRECTORY STEPS RECORDS
//       records a second that the recorder's thread writes when it never has to wait
//   recorder_parts commit DIRECTORY STEPS RECORDS process|step
//       ms until a step is committed, and ms that the same bytes take written to a file of their
//       own (and synced)
//   recorder_parts memory DIRECTORY STEPS RECORDS
//       MiB that the process's peak grows by when steps come faster than they are written
//
// Prints what it measured as numbers in one line: medians over the steps, where they are of steps.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hook/dump_step_builder.h"
#include "hook/recorder.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

/// What the hooks of a model give in every step: a forward and a backward pass of each module, two
/// tensors each. The names are those of a transformer's layers.
class Model {
 public:
  Model(RecordSink& sink, std::size_t records) {
    for (std::size_t i = 0; i < records / 4; ++i) {
      const std::string path = "Module.transformer.layers." + std::to_string(i / 10) + ".block." +
                               std::to_string(i % 10);
      Module& module = modules_.emplace_back();
      module.forward = sink.intern(path + ".Linear.forward.0");
      module.backward = sink.intern(path + ".Linear.backward.0");
    }
    input_ = sink.intern(".input.0");
    output_ = sink.intern(".output.0");
    root_ = sink.intern("Module.transformer.GPT.forward.0");
  }

  std::size_t records() const { return modules_.size() * 4; }

  /// Collects a step in the same way as the hooks do.
  void run(DumpStepBuilder& builder, std::int64_t step) {
    builder.set_parent(root_, std::nullopt);
    const std::array<DumpTensor, 1> input = {DumpTensor{input_}};
    const std::array<DumpTensor, 1> output = {DumpTensor{output_}};
    for (const Module& module : modules_) {
      builder.set_parent(module.forward, root_);
      add(builder, module.forward, DumpSection::kInputArgs, input, step);
      add(builder, module.forward, DumpSection::kOutput, output, step);
    }
    for (std::size_t i = modules_.size(); i > 0; --i) {
      const Module& module = modules_[i - 1];
      builder.set_parent(module.backward, std::nullopt);
      add(builder, module.backward, DumpSection::kGradOutput, output, step);
      add(builder, module.backward, DumpSection::kGradInput, input, step);
    }
  }

 private:
  struct Module {
    std::string_view forward;
    std::string_view backward;
  };

  void add(DumpStepBuilder& builder, std::string_view entry, DumpSection section,
           const std::array<DumpTensor, 1>& tensor, std::int64_t step) {
    value_ += 0.37F;
    const std::array<double, 4> values = {value_ + static_cast<float>(step), value_, -value_, 0.5};
    const DumpStepBuilder::Section added{section, tensor, values};
    builder.add(entry, {&added, 1}, false);
  }

  std::vector<Module> modules_;
  std::string_view input_;
  std::string_view output_;
  std::string_view root_;
  float value_ = 0;
};

RecorderOptions options_for(const fs::path& directory, std::string_view durability = "process") {
  RecorderOptions options;
  options.directory = directory;
  options.durability = durability == "step" ? Durability::kStep : Durability::kProcess;
  return options;
}

void producer(const fs::path& directory, std::int64_t steps, std::size_t records) {
  Recorder recorder(options_for(directory));
  Model model(recorder, records);
  DumpStepBuilder builder;
  std::array<std::vector<double>, 2> ns;  // at rest, writing
  std::int64_t step = 0;
  const auto run = [&] {
    const Clock::time_point begin = Clock::now();
    model.run(builder, step);
    recorder.submit(builder.take(), step++, true);
    return seconds_since(begin) * 1e9 / static_cast<double>(model.records());
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) run();
  for (std::int64_t i = 0; i < steps; ++i) {
    recorder.flush();
    ns[0].push_back(run());
    ns[1].push_back(run());
  }
  std::printf("%.1f %.1f\n", median(ns[0]), median(ns[1]));
}

void writer(const fs::path& directory, std::int64_t steps, std::size_t records) {
  RecorderOptions options = options_for(directory);
  options.queue_bytes = std::size_t{8} << 30;
  Recorder recorder(options);
  Model model(recorder, records);
  DumpStepBuilder builder;
  std::vector<DumpStep> waiting;
  for (std::int64_t step = 0; step < steps; ++step) {
    model.run(builder, step);
    waiting.push_back(builder.take());
  }
  const Clock::time_point begin = Clock::now();
  for (std::int64_t step = 0; step < steps; ++step) {
    recorder.submit(std::move(waiting[static_cast<std::size_t>(step)]), step, true);
  }
  recorder.flush();
  const double seconds = seconds_since(begin);
  if (recorder.counts().lost_records > 0) throw std::runtime_error(recorder.take_warning());
  std::printf("%.0f\n", static_cast<double>(recorder.counts().committed_records) / seconds);
}

void commit(const fs::path& directory, std::int64_t steps, std::size_t records,
            std::string_view durability) {
  Recorder recorder(options_for(directory, durability));
  Model model(recorder, records);
  DumpStepBuilder builder;
  std::vector<double> ours;
  std::vector<double> floor;
  const int file =
      ::open((directory.string() + ".floor").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  const std::vector<char> bytes(model.records() * 4 * sizeof(float), 'x');
  for (std::int64_t step = -2; step < steps; ++step) {
    model.run(builder, step + 2);
    DumpStep taken = builder.take();
    Clock::time_point begin = Clock::now();
    recorder.submit(std::move(taken), step + 2, true);
    recorder.flush();
    const double committed = seconds_since(begin) * 1e3;
    begin = Clock::now();
    if (::write(file, bytes.data(), bytes.size()) < 0) throw std::runtime_error("can't write");
    if (durability == "step") ::fdatasync(file);
    const double written = seconds_since(begin) * 1e3;
    if (step < 0) continue;  // names and tables
    ours.push_back(committed);
    floor.push_back(written);
  }
  ::close(file);
  std::printf("%.3f %.3f\n", median(ours), median(floor));
}

/// VmHWM or VmRSS, in MiB.
double memory_of_this_process(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != key) continue;
    double kib = 0;
    status >> kib;
    return kib / 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + std::string(key));
}

void memory(const fs::path& directory, std::int64_t steps, std::size_t records) {
  const double before = memory_of_this_process("VmRSS:");
  Recorder recorder(options_for(directory));
  Model model(recorder, records);
  DumpStepBuilder builder;
  for (std::int64_t step = 0; step < steps; ++step) {
    model.run(builder, step);
    recorder.submit(builder.take(), step, true);
  }
  recorder.close();
  std::printf("%.1f\n", memory_of_this_process("VmHWM:") - before);
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) {
    throw std::invalid_argument(
        "usage: recorder_parts producer|writer|memory DIRECTORY STEPS RECORDS | commit DIRECTORY "
        "STEPS RECORDS process|step");
  }
  const fs::path directory = arguments[1];
  const std::int64_t steps = std::stoll(arguments[2]);
  const std::size_t records = std::stoull(arguments[3]);
  if (arguments[0] == "producer") producer(directory, steps, records);
  if (arguments[0] == "writer") writer(directory, steps, records);
  if (arguments[0] == "commit") commit(directory, steps, records, arguments.at(4));
  if (arguments[0] == "memory") memory(directory, steps, records);
}

}  // namespace
}  // namespace trendprobe

int main(int count, char** arguments) {
  try {
    trendprobe::run({arguments + 1, arguments + count});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
