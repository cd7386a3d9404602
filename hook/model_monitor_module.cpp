#include "hook/model_monitor_module.h"

#include <ATen/core/grad_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hook/gil_release.h"
#include "hook/model_monitor.h"
#include "hook/record_sink.h"

namespace py = pybind11;

namespace trendprobe {
namespace {

// Below this many elements another thread gains less from Python's lock than the two changes cost.
constexpr std::int64_t kMinElementsToUnlock = 16384;
// Deeper structures of arguments, and circles, are left out.
constexpr int kMaxDepth = 64;

// Asks the type alone: isinstance() could run an impostor's Python code.
bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

py::object attribute(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (found == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

/// The shard of a DTensor. Any thread.
at::Tensor local_tensor(const at::Tensor& tensor) {
  if (Py_IsInitialized() == 0) return {};
  const py::gil_scoped_acquire lock;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  const py::object local = attribute(object.ptr(), "_local_tensor");
  if (!local || !is_tensor(local.ptr())) return {};
  at::Tensor shard = THPVariable_Unpack(local.ptr());
  if (shard.key_set().has(c10::DispatchKey::Python)) return {};
  return shard;
}

/// Finds the tensors in what a module takes or gives, with msProbe's names: positions in lists and
/// tuples, keys of dicts, fields of named tuples and dataclasses
/// (core/dump/data_dump/data_processor/base.py, recursive_apply_transform).
class Flattener {
 public:
  Flattener(ModelMonitor& monitor, std::vector<ModelMonitor::Tensor>& found)
      : monitor_(monitor), found_(found) {}

  void arguments(PyObject* positional, PyObject* named) {
    sequence(positional, true);
    is_positional_ = false;
    path_ = ".input";
    if (PyDict_Check(named)) items(named, 0);
  }
  void result(PyObject* result) {
    if (PyTuple_Check(result)) {
      sequence(result, false);
    } else if (is_tensor(result)) {
      found_.push_back({monitor_.output_suffix(0), THPVariable_Unpack(result)});
    } else {
      path_ = ".output.0";
      element(result, 0);
    }
  }

 private:
  void sequence(PyObject* tuple, bool is_input) {
    if (!PyTuple_CheckExact(tuple)) {
      path_ = is_input ? ".input" : ".output";
      element(tuple, 0);
      return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
      PyObject* item = PyTuple_GET_ITEM(tuple, i);
      const auto position = static_cast<std::size_t>(i);
      if (is_tensor(item)) {
        found_.push_back(
            {is_input ? monitor_.input_suffix(position) : monitor_.output_suffix(position),
             THPVariable_Unpack(item), true});
      } else if (item != Py_None) {
        path_ = is_input ? ".input" : ".output";
        child(std::to_string(i), item, 0);
      }
    }
  }

  void child(std::string_view name, PyObject* object, int depth) {
    const std::size_t before = path_.size();
    path_ += '.';
    path_ += name;
    element(object, depth + 1);
    path_.resize(before);
  }

  void element(PyObject* object, int depth) {
    if (is_tensor(object)) {
      found_.push_back({monitor_.intern(path_), THPVariable_Unpack(object), is_positional_});
      return;
    }
    if (depth > kMaxDepth || object == Py_None || PyLong_Check(object) || PyFloat_Check(object) ||
        PyUnicode_Check(object) || PyBytes_Check(object) || PyType_Check(object)) {
      return;
    }
    if (PyTuple_Check(object) && !PyTuple_CheckExact(object)) {
      if (const py::object names = attribute(object, "_fields"); names) {
        fields(object, names, depth);
        return;
      }
    }
    if (const py::object names =
            attribute(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__dataclass_fields__");
        names) {
      fields(object, names, depth);
    } else if (PyTuple_Check(object) || PyList_Check(object)) {
      // A copy: what is iterated over must not change.
      const py::tuple copy = py::reinterpret_steal<py::tuple>(PySequence_Tuple(object));
      for (std::size_t i = 0; i < copy.size(); ++i) {
        child(std::to_string(i), copy[i].ptr(), depth);
      }
    } else if (PyDict_Check(object)) {
      items(object, depth);
    }
  }

  void fields(PyObject* object, const py::object& names, int depth) {
    for (const py::handle name : names) {
      const py::object value = py::getattr(object, name, py::none());
      child(py::cast<std::string>(py::str(name)), value.ptr(), depth);
    }
  }

  void items(PyObject* dict, int depth) {
    const py::dict copy = py::reinterpret_steal<py::dict>(PyDict_Copy(dict));
    for (const auto& [key, value] : copy) {
      child(py::cast<std::string>(py::str(key)), value.ptr(), depth);
    }
  }

  ModelMonitor& monitor_;
  std::vector<ModelMonitor::Tensor>& found_;
  bool is_positional_ = true;
  std::string path_;
};

/// Gives Python's lock back where there is much to measure.
template <typename Action>
void unlocked(std::int64_t elements, Action&& action) {
  std::optional<GilRelease> release;
  if (elements >= kMinElementsToUnlock) release.emplace();
  action();
}

std::int64_t elements_of(const std::vector<ModelMonitor::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const ModelMonitor::Tensor& tensor : tensors) {
    if (tensor.tensor.layout() == at::kStrided) sum += tensor.tensor.numel();
  }
  return sum;
}

/// What Python's hooks call. Under Python's lock, which guards its own members.
class PyModelMonitor {
 public:
  PyModelMonitor(const py::object& recorder, const std::vector<std::string>& statistics,
                 bool main_memory_is_device) {
    const py::object capsule = recorder.attr("_sink")();
    auto* sink = static_cast<RecordSink*>(PyCapsule_GetPointer(capsule.ptr(), kRecordSinkCapsule));
    if (sink == nullptr) throw py::error_already_set();
    const auto chosen = DumpStatistics::named(statistics);
    if (!chosen.has_value()) throw py::value_error("unknown statistics");
    // A graph that is still alive may let go of the recorder in any thread, and at any time.
    PyObject* owner = recorder.inc_ref().ptr();
    std::shared_ptr<RecordSink> shared(sink, [owner](RecordSink* /*sink*/) {
      if (Py_IsInitialized() == 0) return;
      const py::gil_scoped_acquire lock;
      Py_DECREF(owner);
    });
    monitor_ = std::make_shared<ModelMonitor>(
        std::move(shared), ModelMonitor::Options{*chosen, &local_tensor, main_memory_is_device});
  }

  std::uint32_t add_module(const py::handle& module, const std::string& name, bool is_root) {
    const ModelMonitor::ModuleId id = monitor_->add_module(name, is_root);
    modules_[module.ptr()] = {id, {}};
    return id;
  }

  /// Hooks a parameter of a module, if it gets gradients.
  void add_parameter(const py::handle& module, const py::handle& name, const py::handle& parameter,
                     const std::string& path) {
    Module& owner = modules_.at(module.ptr());
    const bool requires_grad = THPVariable_Unpack(parameter.ptr()).requires_grad();
    const std::uint32_t number =
        monitor_->add_parameter(owner.id, py::cast<std::string_view>(name), requires_grad, path);
    owner.parameters.push_back({py::reinterpret_borrow<py::object>(name),
                                monitor_->intern(".parameters." + py::cast<std::string>(name)),
                                number});
    watch(parameter, {owner.id, number});
  }

  void before_forward(const py::handle& module, const py::handle& arguments,
                      const py::handle& named) noexcept {
    guarded([&] {
      const auto found = modules_.find(module.ptr());
      if (found == modules_.end()) return;
      std::vector<ModelMonitor::Tensor> tensors;
      Flattener(*monitor_, tensors).arguments(arguments.ptr(), named.ptr());
      bool is_training = true;
      if (!at::GradMode::is_enabled()) {
        const py::object mode = attribute(module.ptr(), "training");
        is_training = mode && mode.ptr() == Py_True;
      }
      unlocked(elements_of(tensors),
               [&] { monitor_->begin_call(found->second.id, tensors, is_training); });
    });
  }

  void after_forward(const py::handle& module, const py::handle& /*arguments*/,
                     const py::handle& /*named*/, const py::handle& result) noexcept {
    guarded([&] {
      const auto found = modules_.find(module.ptr());
      if (found == modules_.end()) return;
      std::vector<ModelMonitor::Tensor> results;
      std::vector<ModelMonitor::Tensor> parameters;
      // torch calls this hook with None, too, when an exception left the module.
      bool has_result = !result.is_none();
      if (has_result) {
        Flattener(*monitor_, results).result(result.ptr());
      } else {
        PyObject* handled = PyErr_GetHandledException();
        has_result = handled == nullptr;
        Py_XDECREF(handled);
      }
      add_parameters(module, found->second, parameters);
      unlocked(elements_of(results) + elements_of(parameters),
               [&] { monitor_->end_call(found->second.id, results, parameters, has_result); });
    });
  }

  void after_accumulation(const py::handle& parameter) noexcept {
    guarded([&] {
      if (!is_tensor(parameter.ptr())) return;
      const at::Tensor tensor = THPVariable_Unpack(parameter.ptr());
      const auto found = watched_.find(tensor.unsafeGetTensorImpl());
      if (found == watched_.end()) return;
      at::Tensor gradient = tensor.grad();
      if (!gradient.defined()) {
        // Megatron adds to a buffer of its own.
        const py::object main = attribute(parameter.ptr(), "main_grad");
        if (!main || !is_tensor(main.ptr())) return;
        gradient = THPVariable_Unpack(main.ptr());
      }
      const std::int64_t elements = gradient.layout() == at::kStrided ? gradient.numel() : 0;
      // A copy: other threads may watch further parameters while Python's lock is given back.
      const std::vector<ModelMonitor::Owner> owners = found->second.owners;
      unlocked(elements, [&] { monitor_->add_gradient(owners, tensor, gradient); });
    });
  }

  void add_monitor_rows(const std::string& metric,
                        const std::vector<std::pair<std::string, py::object>>& tensors) noexcept {
    guarded([&] {
      for (const auto& named : tensors) {
        if (!is_tensor(named.second.ptr())) continue;
        const at::Tensor tensor = THPVariable_Unpack(named.second.ptr());
        unlocked(tensor.layout() == at::kStrided ? tensor.numel() : 0,
                 [&] { monitor_->add_monitor_row(metric, named.first, tensor); });
      }
    });
  }

  bool step(std::int64_t training_step, bool complete) {
    forget_dead_parameters();
    const GilRelease release;
    return monitor_->step(training_step, complete);
  }

  /// What to register on parameters; it calls after_accumulation(). Kept until close().
  void set_accumulation_hook(py::object hook) { accumulation_hook_ = std::move(hook); }

  void close() {
    accumulation_hook_ = py::none();
    for (const py::object& handle : handles_) {
      try {
        handle.attr("remove")();
      } catch (const py::error_already_set&) {
        // Its parameter is gone.
      }
    }
    handles_.clear();
    watched_.clear();
    modules_.clear();
    const GilRelease release;
    monitor_->close();
  }

  ModelMonitor& monitor() { return *monitor_; }

 private:
  struct NamedParameter {
    py::object name;
    std::string_view suffix;
    std::uint32_t number;
  };
  struct Module {
    ModelMonitor::ModuleId id = 0;
    std::vector<NamedParameter> parameters;
  };
  struct Watched {
    // Keeps the address from being another tensor's.
    c10::weak_intrusive_ptr<at::TensorImpl> alive;
    std::vector<ModelMonitor::Owner> owners;
  };

  template <typename Action>
  void guarded(Action&& action) noexcept {
    const ModelMonitor::Stopwatch stopwatch(*monitor_);
    try {
      action();
    } catch (py::error_already_set& error) {
      report(error.what());
    } catch (const std::exception& error) {
      report(error.what());
    } catch (...) {
      report("unknown error");
    }
    // Nothing that went wrong here may surface in the training.
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
  }

  void report(const char* what) noexcept { monitor_->report(what); }

  /// The module's own parameters as they are now: FSDP2 shows others while the module runs.
  void add_parameters(const py::handle& module, Module& owner,
                      std::vector<ModelMonitor::Tensor>& found) {
    const py::object all = attribute(module.ptr(), "_parameters");
    if (!all || !PyDict_Check(all.ptr())) return;
    std::size_t next = 0;
    for (const auto& [name, parameter] : py::reinterpret_borrow<py::dict>(all)) {
      if (!is_tensor(parameter.ptr())) continue;
      const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
      NamedParameter* known = nullptr;
      for (std::size_t i = 0; i < owner.parameters.size() && known == nullptr; ++i) {
        NamedParameter& candidate = owner.parameters[(next + i) % owner.parameters.size()];
        if (candidate.name.ptr() == name.ptr() || candidate.name.equal(name)) known = &candidate;
      }
      if (known == nullptr) {
        add_parameter(module, name, parameter, {});
        known = &owner.parameters.back();
      } else if (tensor.requires_grad() && tensor.is_leaf()) {
        watch(parameter, {owner.id, known->number});
      }
      next = static_cast<std::size_t>(known - owner.parameters.data()) + 1;
      const bool is_double = std::any_of(
          found.begin(), found.end(),
          [&](const ModelMonitor::Tensor& other) { return other.tensor.is_same(tensor); });
      if (!is_double) found.push_back({known->suffix, tensor});
    }
  }

  void watch(const py::handle& parameter, ModelMonitor::Owner owner) {
    const at::Tensor& tensor = THPVariable_Unpack(parameter.ptr());
    if (!tensor.requires_grad() || !tensor.is_leaf()) return;
    const auto found = watched_.find(tensor.unsafeGetTensorImpl());
    if (found != watched_.end()) {
      std::vector<ModelMonitor::Owner>& owners = found->second.owners;
      for (const ModelMonitor::Owner& known : owners) {
        if (known.module == owner.module && known.parameter == owner.parameter) return;
      }
      owners.push_back(owner);
      return;
    }
    handles_.push_back(parameter.attr("register_post_accumulate_grad_hook")(accumulation_hook_));
    watched_.emplace(
        tensor.unsafeGetTensorImpl(),
        Watched{c10::weak_intrusive_ptr<at::TensorImpl>(tensor.getIntrusivePtr()), {owner}});
  }

  void forget_dead_parameters() {
    for (auto entry = watched_.begin(); entry != watched_.end();) {
      entry = entry->second.alive.expired() ? watched_.erase(entry) : std::next(entry);
    }
  }

  std::shared_ptr<ModelMonitor> monitor_;
  std::unordered_map<PyObject*, Module> modules_;  // borrowed: a module holds its hooks, not we it
  std::unordered_map<at::TensorImpl*, Watched> watched_;
  std::vector<py::object> handles_;
  py::object accumulation_hook_ = py::none();
};

py::tuple to_tuple(const ModelMonitor::Cost& cost) {
  return py::make_tuple(static_cast<double>(cost.time.count()) * 1e-9, cost.tensors);
}

}  // namespace

void define_model_monitor(py::module_& module) {
  py::class_<PyModelMonitor>(module, "ModelMonitor")
      .def(py::init<const py::object&, const std::vector<std::string>&, bool>(),
           py::arg("recorder"), py::arg("statistics"), py::arg("main_memory_is_device") = false)
      .def("add_module", &PyModelMonitor::add_module, py::arg("module"), py::arg("name"),
           py::arg("is_root"))
      .def("add_parameter", &PyModelMonitor::add_parameter, py::arg("module"), py::arg("name"),
           py::arg("parameter"), py::arg("path"))
      .def("set_accumulation_hook", &PyModelMonitor::set_accumulation_hook)
      .def("set_unwatched",
           [](PyModelMonitor& self, std::uint32_t id, std::string reason) {
             self.monitor().set_unwatched(id, std::move(reason));
           })
      .def("before_forward", &PyModelMonitor::before_forward)
      .def("after_forward", &PyModelMonitor::after_forward)
      .def("after_accumulation", &PyModelMonitor::after_accumulation)
      .def("add_monitor_rows", &PyModelMonitor::add_monitor_rows)
      .def("step", &PyModelMonitor::step, py::arg("training_step"), py::arg("complete"))
      .def("close", &PyModelMonitor::close)
      .def("is_empty", [](PyModelMonitor& self) { return self.monitor().is_empty(); })
      .def("has_run",
           [](PyModelMonitor& self, std::uint32_t id) { return self.monitor().has_run(id); })
      .def("coverage",
           [](PyModelMonitor& self) {
             std::vector<std::pair<std::string, std::string>> result;
             for (auto& [target, reason] : self.monitor().coverage()) {
               result.emplace_back(std::move(target), std::move(reason));
             }
             return result;
           })
      .def("last_cost", [](PyModelMonitor& self) { return to_tuple(self.monitor().last_cost()); })
      .def("total_cost", [](PyModelMonitor& self) { return to_tuple(self.monitor().total_cost()); })
      .def("take_error", [](PyModelMonitor& self) { return self.monitor().take_error(); });
}

}  // namespace trendprobe
