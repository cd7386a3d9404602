// Trains a small net in C++, without Python, and records it: the same shard that
// trendprobe.Monitor writes.
//
//   libtorch_example DIRECTORY [STEPS]
//
// libtorch has no hooks on modules, so the net tells the monitor of each call itself.
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hook/model_monitor.h"
#include "hook/recorder.h"

namespace {

using trendprobe::ModelMonitor;

constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kBatch = 32;

/// A module of one argument and one result that is recorded under msProbe's name for it.
class Watched {
 public:
  Watched(ModelMonitor& monitor, const std::string& name, torch::nn::AnyModule module)
      : monitor_(monitor), module_(std::move(module)), id_(monitor.add_module("Module." + name)) {
    for (const auto& parameter : module_.ptr()->named_parameters(/*recurse=*/false)) {
      const bool requires_grad = parameter.value().requires_grad();
      parameters_.push_back({monitor.intern(".parameters." + parameter.key()), parameter.value()});
      numbers_.push_back(monitor.add_parameter(id_, parameter.key(), requires_grad));
    }
  }

  torch::Tensor operator()(const torch::Tensor& x) {
    const std::array arguments = {ModelMonitor::Tensor{monitor_.input_suffix(0), x}};
    monitor_.begin_call(id_, arguments, module_.ptr()->is_training());
    torch::Tensor result = module_.forward(x);
    const std::array results = {ModelMonitor::Tensor{monitor_.output_suffix(0), result}};
    monitor_.end_call(id_, results, parameters_);
    return result;
  }

  /// To be called after each backward pass.
  void add_gradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::array owners = {ModelMonitor::Owner{id_, numbers_[i]}};
      const torch::Tensor& parameter = parameters_[i].tensor;
      monitor_.add_gradient(owners, parameter, parameter.grad());
    }
  }

 private:
  ModelMonitor& monitor_;
  torch::nn::AnyModule module_;
  ModelMonitor::ModuleId id_;
  std::vector<ModelMonitor::Tensor> parameters_;
  std::vector<std::uint32_t> numbers_;
};

void train(const std::string& directory, std::int64_t steps) {
  torch::manual_seed(1);
  trendprobe::RecorderOptions options;
  options.directory = directory;
  const auto recorder = std::make_shared<trendprobe::Recorder>(options);
  recorder->set_info("framework", "libtorch");
  recorder->set_rank(0);
  const auto monitor = std::make_shared<ModelMonitor>(recorder);
  // Each call of the whole net is a micro-step.
  const ModelMonitor::ModuleId net = monitor->add_module("Module.Net", /*is_root=*/true);

  torch::nn::Linear first(kWidth, 4 * kWidth);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4 * kWidth}));
  torch::nn::Linear last(4 * kWidth, 1);
  std::vector<Watched> layers;
  layers.emplace_back(*monitor, "first.Linear", torch::nn::AnyModule(first));
  layers.emplace_back(*monitor, "norm.LayerNorm", torch::nn::AnyModule(norm));
  layers.emplace_back(*monitor, "act.GELU", torch::nn::AnyModule(torch::nn::GELU()));
  layers.emplace_back(*monitor, "last.Linear", torch::nn::AnyModule(last));

  std::vector<torch::Tensor> parameters;
  for (const auto& module : {first.ptr(), last.ptr()}) {
    for (const torch::Tensor& parameter : module->parameters()) parameters.push_back(parameter);
  }
  for (const torch::Tensor& parameter : norm->parameters()) parameters.push_back(parameter);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));

  const torch::Tensor batch = torch::randn({kBatch, kWidth});
  const torch::Tensor wanted = batch.square().mean(1, /*keepdim=*/true);
  for (std::int64_t step = 0; step < steps; ++step) {
    torch::Tensor x = batch;
    monitor->begin_call(net, {}, /*is_training=*/true);
    for (Watched& layer : layers) x = layer(x);
    monitor->end_call(net, {}, {});
    const torch::Tensor loss = torch::mse_loss(x, wanted);
    loss.backward();
    for (Watched& layer : layers) layer.add_gradients();
    optimizer.step();
    optimizer.zero_grad();
    monitor->step(step);
    std::cout << "step " << step << ": loss " << loss.item<float>() << '\n';
  }
  for (const auto& [target, reason] : monitor->coverage()) {
    std::cout << target << ": " << reason << '\n';
  }
  monitor->close();
  recorder->close();
  if (const std::string warning = recorder->take_warning(); !warning.empty()) {
    std::cerr << warning << '\n';
  }
  std::cout << "recorded in " << recorder->shard().string() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: libtorch_example DIRECTORY [STEPS]\n";
    return 2;
  }
  try {
    train(argv[1], argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 10);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
