#include "hook/dump_collector.h"

#include <ATen/ATen.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "hook/dump_values.h"
#include "hook/gil_release.h"
#include "hook/torch_tensor_stats.h"
#include "writer/value_encoding.h"

namespace py = pybind11;

namespace trendprobe {
namespace {

// Below this many elements another thread gains less from Python's lock than the two changes cost.
constexpr std::int64_t kMinElementsToUnlock = 16384;

// msProbe's limit of nesting (core/common/const.py, DUMP_MAX_DEPTH).
constexpr int kMaxDepth = 400;

// The parts of a DataCollector's optimizer_status in which calls are the children of a node of that
// name.
constexpr std::array<std::string_view, 2> kStatusNodes = {"optimizer", "clip_grad"};

std::string_view text_of(const py::handle& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

bool is_module(std::string_view name) {
  return name.starts_with("Module.") || name.starts_with("Cell.");
}

bool is_forward(std::string_view name) {
  return name.find(".forward.") != std::string_view::npos || name.ends_with(".forward");
}

// Also in a thread that autograd started: the pass that a recomputation is part of.
bool is_in_backward_pass() { return torch::autograd::get_current_graph_task_id() != -1; }

// Values that are no tensor and hold none.
bool is_plain_value(PyObject* value) {
  const PyTypeObject* type = Py_TYPE(value);
  return value == Py_None || type == &PyFloat_Type || type == &PyLong_Type ||
         type == &PyBool_Type || type == &PyUnicode_Type || type == &PyBytes_Type ||
         type == &PySlice_Type || type == &PyEllipsis_Type || type == &THPDtypeType ||
         type == &THPDeviceType || type == &THPSizeType || type == &THPMemoryFormatType;
}

bool is_tensor(PyObject* value) {
  return PyObject_TypeCheck(value, reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

// Neither a subclass, which may stand for something else, nor one of vmap's batches.
bool is_plain_tensor(PyObject* value) {
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  return (type == THPVariableClass || type == ParameterClass) &&
         !THPVariable_Unpack(value).key_set().has(c10::DispatchKey::FuncTorchBatched);
}

// What msProbe analyses as a device or dtype, whatever it is
// (core/dump/data_dump/data_processor/pytorch_processor.py, torch_object_key).
bool is_key_of_no_tensor(std::string_view key) {
  return key == "device" || key == "dtype" || key == "output_dtype";
}

}  // namespace

// The tensors in the values of one call, named and then measured.
class DumpCollector::Walk {
 public:
  explicit Walk(DumpCollector& owner) : owner_(owner) {}

  void take(DumpSection section, std::string_view suffix, const py::handle& value) {
    suffix_ = suffix;
    sections_.push_back({section, found_.size()});
    walk(value, 0, false);
  }

  void add_to(std::string_view entry) {
    measure_all();
    const std::size_t width = owner_.options_.statistics.size();
    std::vector<DumpTensor> tensors;
    tensors.reserve(found_.size());
    for (const Found& found : found_) tensors.push_back({found.suffix});
    std::vector<DumpStepBuilder::Section> sections;
    sections.reserve(sections_.size());
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      const std::size_t first = sections_[i].first;
      const std::size_t end = i + 1 < sections_.size() ? sections_[i + 1].first : found_.size();
      sections.push_back({sections_[i].section, std::span(tensors).subspan(first, end - first),
                          std::span(values_).subspan(first * width, (end - first) * width)});
    }
    owner_.builder_.add(entry, sections, is_forward(entry) && is_in_backward_pass());
  }

 private:
  struct Found {
    std::string_view suffix;
    at::Tensor tensor;             // undefined: msProbe's own values
    std::vector<double> measured;  // its four
  };
  struct Taken {
    DumpSection section;
    std::size_t first;
  };

  // Appends ".<part>" to the suffix for as long as it lives.
  class Part {
   public:
    Part(std::string& suffix, std::string_view part) : suffix_(suffix), size_(suffix.size()) {
      suffix += '.';
      suffix += part;
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { suffix_.resize(size_); }

   private:
    std::string& suffix_;
    std::size_t size_;
  };

  void walk(const py::handle& value, int depth, bool is_no_tensor) {
    PyObject* object = value.ptr();
    if (is_plain_value(object) || depth > kMaxDepth) return;
    if (is_tensor(object)) {
      if (!is_no_tensor) found(value);
    } else if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      // Functions of the caller's may change a list while it is walked.
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        const auto element =
            py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(object, i));
        const Part part(suffix_, std::to_string(i));
        walk(element, depth + 1, false);
      }
    } else if (PyDict_CheckExact(object)) {
      PyObject* key = nullptr;
      PyObject* element = nullptr;
      Py_ssize_t position = 0;
      while (PyDict_Next(object, &position, &key, &element) != 0) {
        const auto kept = py::reinterpret_borrow<py::object>(element);
        const py::str text(py::reinterpret_borrow<py::object>(key));
        const std::string_view name = text_of(text);
        const Part part(suffix_, name);
        walk(kept, depth + 1, is_key_of_no_tensor(name));
      }
    } else if (!owner_.without_tensors_.contains(Py_TYPE(object))) {
      walk_special(value);
    }
  }

  void walk_special(const py::handle& value) {
    const py::object tensors = owner_.options_.tensors_in(value);
    if (tensors.is_none()) {
      PyTypeObject* type = Py_TYPE(value.ptr());
      if (owner_.without_tensors_.insert(type).second) Py_INCREF(type);
      return;
    }
    for (const py::handle item : py::cast<py::list>(tensors)) {
      const auto pair = py::cast<std::pair<py::object, py::object>>(item);
      const std::size_t size = suffix_.size();
      suffix_ += text_of(pair.first);
      if (is_tensor(pair.second.ptr())) {
        found(pair.second);
      } else {
        found_.push_back({owner_.interned(suffix_), {}, {}});
        for (const py::handle number : py::cast<py::tuple>(pair.second)) {
          found_.back().measured.push_back(number.is_none() ? kMissing
                                                            : canonical(py::cast<double>(number)));
        }
      }
      suffix_.resize(size);
    }
  }

  void found(const py::handle& tensor) {
    py::object plain = py::reinterpret_borrow<py::object>(tensor);
    if (!is_plain_tensor(plain.ptr())) plain = owner_.options_.plain_tensor(plain);
    if (plain.is_none() || !is_tensor(plain.ptr())) return;
    found_.push_back({owner_.interned(suffix_), THPVariable_Unpack(plain.ptr()), {}});
  }

  void measure_all() {
    const std::size_t width = owner_.options_.statistics.size();
    values_.assign(found_.size() * width, kMissing);
    std::int64_t elements = 0;
    for (const Found& found : found_) {
      if (found.tensor.defined() && found.tensor.is_cpu()) elements += found.tensor.numel();
    }
    std::optional<GilRelease> release;
    if (elements >= kMinElementsToUnlock) release.emplace();
    for (std::size_t i = 0; i < found_.size(); ++i) {
      measure(found_[i], std::span(values_).subspan(i * width, width));
    }
  }

  void measure(const Found& found, std::span<double> values) {
    const DumpStatistics statistics = owner_.options_.statistics;
    if (!found.tensor.defined()) {
      // msProbe's four are the first.
      std::copy_n(found.measured.begin(), std::min(found.measured.size(), values.size()),
                  values.begin());
      return;
    }
    const bool is_floating_point = found.tensor.is_floating_point() || found.tensor.is_complex();
    const at::Tensor in_memory = measurable(found.tensor);
    if (in_memory.defined()) {
      const auto measured = trendprobe::measure(in_memory, owner_.also());
      if (measured.has_value()) {
        write_dump_values(*measured, is_floating_point, statistics, values);
      }
    } else if (!found.tensor.is_cpu() && !found.tensor.is_meta()) {
      const DeviceSlab::Added added = owner_.slab_.add(found.tensor, owner_.also());
      if (added.outcome == DeviceSlab::Outcome::kQueued) {
        write_pending_values(added.row, is_floating_point, statistics, values);
      }
    }
  }

  DumpCollector& owner_;
  std::string suffix_;
  std::vector<Found> found_;
  std::vector<Taken> sections_;
  std::vector<double> values_;
};

DumpCollector::DumpCollector(py::object recorder, py::object collector,
                             DumpCollectorOptions options)
    : options_(std::move(options)),
      recorder_(std::move(recorder)),
      collector_(std::move(collector)),
      module_processor_(collector_.attr("module_processor")),
      backward_module_names_(collector_.attr("backward_module_names")),
      sink_(py::cast<py::capsule>(recorder_.attr("_sink")()).get_pointer<RecordSink>()),
      builder_(options_.statistics) {}

MeasureAlso DumpCollector::also() const {
  return options_.statistics.contains(DumpStatistic::kStd) ? MeasureAlso::kStandardDeviation
                                                           : MeasureAlso::kNothing;
}

DumpCollector::Name& DumpCollector::name_of(const py::handle& name) {
  const std::string_view text = text_of(name);
  if (const auto found = names_.find(text); found != names_.end()) return found->second;
  const std::string_view kept = sink_->intern(text);
  return names_.try_emplace(kept, Name{kept, {}, {}}).first->second;
}

std::string_view DumpCollector::interned(std::string_view text) {
  if (const auto found = names_.find(text); found != names_.end()) return found->second.text;
  const std::string_view kept = sink_->intern(text);
  return names_.try_emplace(kept, Name{kept, {}, {}}).first->second.text;
}

bool DumpCollector::is_collected(Name& name, const py::str& text, const py::handle& pid) {
  if (options_.should_collect.is_none()) return true;
  if (options_.should_collect_by_name && name.is_collected.has_value()) return *name.is_collected;
  name.is_collected = py::cast<bool>(options_.should_collect(text, pid));
  return *name.is_collected;
}

py::object DumpCollector::without_ignored(Name& name, const py::str& text, py::object value,
                                          const char* input_or_output) {
  if (!name.has_ignore_rule.has_value()) {
    name.has_ignore_rule = py::cast<bool>(options_.has_ignore_rule(text));
  }
  if (!*name.has_ignore_rule) return value;
  return options_.apply_ignore_rule(text, value, input_or_output);
}

// analyze_forward_input(). Positional and keyword arguments have one kind of name.
void DumpCollector::forward_input(const py::str& name, const py::handle& pid,
                                  const py::handle& inputs_outputs) {
  Name& entry = name_of(name);
  if (!is_collected(entry, name, pid) || !options_.forward_input) return;
  Walk walk(*this);
  walk.take(DumpSection::kInputArgs, ".input",
            without_ignored(entry, name, inputs_outputs.attr("args_tuple"), "input"));
  walk.take(DumpSection::kInputKwargs, ".input",
            without_ignored(entry, name, inputs_outputs.attr("kwargs"), "input"));
  walk.add_to(entry.text);
}

// analyze_forward_output().
void DumpCollector::forward_output(const py::str& name, const py::handle& module,
                                   const py::handle& pid, const py::handle& inputs_outputs) {
  Name& entry = name_of(name);
  update_construct(entry.text);
  if (!is_collected(entry, name, pid)) return;
  const bool of_module = is_module(entry.text);
  if (!of_module && py::bool_(py::getattr(module, "op_is_distributed", py::bool_(false)))) {
    // It writes into its arguments.
    inputs_outputs.attr("update_output_with_args_and_kwargs")();
  }
  if (!options_.forward_output) return;
  Walk walk(*this);
  walk.take(DumpSection::kOutput, ".output",
            without_ignored(entry, name, inputs_outputs.attr("output_tuple"), "output"));
  if (of_module) {
    walk.take(DumpSection::kParameters, ".parameters",
              py::getattr(inputs_outputs, "parameters", py::none()));
  }
  walk.add_to(entry.text);
}

// analyze_backward().
void DumpCollector::backward(const py::str& name, const py::handle& pid,
                             const py::handle& inputs_outputs) {
  Name& entry = name_of(name);
  update_construct(entry.text);
  if (!is_collected(entry, name, pid) || (!options_.backward_input && !options_.backward_output)) {
    return;
  }
  Walk walk(*this);
  if (options_.backward_input) {
    walk.take(DumpSection::kGradInput, ".input", inputs_outputs.attr("grad_input_tuple"));
  }
  if (options_.backward_output) {
    walk.take(DumpSection::kGradOutput, ".output", inputs_outputs.attr("grad_output_tuple"));
  }
  if (is_module(entry.text)) {
    // Without ".backward.<call>".
    const std::size_t call = entry.text.rfind('.');
    const std::string_view module = entry.text.substr(0, entry.text.rfind('.', call - 1));
    backward_module_names_[py::str(module.data(), module.size())] = true;
  }
  walk.add_to(entry.text);
}

// params_data_collect(), analyze_params().
void DumpCollector::parameter_gradient(const py::str& name, const py::str& parameter,
                                       std::int64_t pid, const py::handle& gradient,
                                       const py::str& index) {
  std::string entry(text_of(name));
  entry.append(".parameters_grad.").append(text_of(index));
  const std::string_view kept = interned(entry);
  const bool is_in_scope =
      (options_.scope.is_none() || py::cast<bool>(options_.scope.attr("check")(name))) &&
      pid == getpid();
  if (!is_in_scope && !backward_module_names_.contains(name)) {
    builder_.remove(kept);
    return;
  }
  Walk walk(*this);
  std::string suffix = ".";
  suffix += text_of(parameter);
  walk.take(DumpSection::kParametersGrad, suffix, gradient);
  walk.add_to(kept);
}

std::optional<std::int32_t> DumpCollector::megatron_micro_step() {
  return py::cast<std::optional<std::int32_t>>(options_.micro_step());
}

// DataCollector.update_construct().
void DumpCollector::update_construct(std::string_view name) {
  if (!options_.construct) return;
  const py::object status = collector_.attr("optimizer_status");
  const std::string_view status_text = text_of(status);
  bool is_in_status = false;
  for (std::size_t i = 0; i < kStatusNodes.size(); ++i) {
    if (status_text != kStatusNodes[i]) continue;
    is_in_status = true;
    const std::string_view node = interned(kStatusNodes[i]);
    const auto micro_step = megatron_micro_step();
    if (!std::exchange(has_status_node_[i], true)) {
      builder_.set_parent(node, std::nullopt, micro_step);
    }
    builder_.set_parent(name, node, micro_step);
  }
  if (!is_in_status && options_.apis_in_construct && !is_module(name)) {
    const py::dict parents = module_processor_.attr("api_parent_node");
    const py::object parent = parents.attr("get")(PyThread_get_thread_ident());
    set_parent(name, parent);
  }
  take_module_nodes();
}

// msProbe adds its whole dict each time; only what is new makes a difference before the step ends.
void DumpCollector::take_module_nodes() {
  const py::object nodes = module_processor_.attr("module_node");
  if (!nodes.is(module_nodes_)) {
    module_nodes_ = nodes;
    known_module_nodes_ = 0;
  }
  const auto size = PyDict_Size(nodes.ptr());
  if (size < 0) throw py::error_already_set();
  if (size == known_module_nodes_) return;
  std::vector<py::object> added;
  const py::object reversed = nodes.attr("__reversed__")();
  for (const py::handle key : reversed) {
    added.push_back(py::reinterpret_borrow<py::object>(key));
    if (static_cast<py::ssize_t>(added.size()) == size - known_module_nodes_) break;
  }
  known_module_nodes_ = size;
  std::reverse(added.begin(), added.end());
  for (const py::object& key : added) set_parent(interned(text_of(key)), nodes[key]);
}

// `parent` is a name or None, or a list of that and Megatron's micro-step.
void DumpCollector::set_parent(std::string_view node, const py::handle& parent) {
  py::object name = py::reinterpret_borrow<py::object>(parent);
  std::optional<std::int32_t> micro_step;
  if (py::isinstance<py::list>(parent)) {
    const auto pair = py::reinterpret_borrow<py::list>(parent);
    if (pair.size() != 2) return;
    name = pair[0];
    if (!pair[1].is_none()) micro_step = py::cast<std::int32_t>(pair[1]);
  }
  std::optional<std::string_view> kept;
  if (!name.is_none()) kept = interned(text_of(name));
  builder_.set_parent(node, kept, micro_step);
}

bool DumpCollector::submit(std::int64_t training_step, bool complete) {
  if (module_nodes_) {
    // The last parent counts where a node came twice.
    for (const auto& [node, parent] : py::cast<py::dict>(module_nodes_)) {
      set_parent(interned(text_of(node)), parent);
    }
  }
  module_nodes_ = py::object();
  known_module_nodes_ = 0;
  has_status_node_ = {};
  if (is_empty()) {
    builder_.take();
    return true;
  }
  const GilRelease release;
  const std::shared_ptr<DeviceRows> rows = slab_.take();
  ResolveDumpStep resolve;
  if (rows) resolve = [rows](DumpStep& step) { rows->resolve(step.values); };
  return sink_->submit(builder_.take(), training_step, complete, std::move(resolve));
}

int DumpCollector::traverse(visitproc visit, void* argument) const {
  for (const py::object* object :
       {&recorder_, &collector_, &module_processor_, &backward_module_names_, &module_nodes_,
        &options_.should_collect, &options_.scope, &options_.has_ignore_rule,
        &options_.apply_ignore_rule, &options_.tensors_in, &options_.plain_tensor,
        &options_.micro_step, &options_.on_error}) {
    if (const int stop = object->ptr() == nullptr ? 0 : visit(object->ptr(), argument); stop != 0) {
      return stop;
    }
  }
  return 0;
}

void DumpCollector::clear() {
  collector_ = py::none();
  module_nodes_ = py::object();
  options_.should_collect = py::none();
  options_.scope = py::none();
  options_.has_ignore_rule = py::none();
  options_.apply_ignore_rule = py::none();
  options_.tensors_in = py::none();
  options_.plain_tensor = py::none();
  options_.micro_step = py::none();
  options_.on_error = py::none();
}

namespace {

// Calls `body`; an error goes to on_error(error), a method of the Python object, and not to the
// training. What is no Exception (KeyboardInterrupt) is the training's own.
template <typename Body>
void guarded(const py::object& on_error, const Body& body) {
  try {
    try {
      body();
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      on_error(error.value());
    } catch (const std::exception& error) {
      on_error(py::reinterpret_steal<py::object>(
          PyObject_CallFunction(PyExc_RuntimeError, "s", error.what())));
    }
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
  } catch (const std::exception&) {
    // Not even the message could be given.
  }
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!py::detail::is_holder_constructed(self)) return 0;
  return py::cast<const DumpCollector&>(py::handle(self)).traverse(visit, arg);
}

int clear(PyObject* self) {
  py::cast<DumpCollector&>(py::handle(self)).clear();
  return 0;
}

}  // namespace

void define_dump_collector(py::module_& module) {
  using Self = DumpCollector;
  py::class_<Self>(module, "DumpCollector", py::custom_type_setup([](PyHeapTypeObject* type) {
                     type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
                     type->ht_type.tp_traverse = traverse;
                     type->ht_type.tp_clear = clear;
                   }))
      .def(py::init([](py::object recorder, py::object collector,
                       const std::vector<std::string>& statistics, bool forward_input,
                       bool forward_output, bool backward_input, bool backward_output,
                       bool construct, bool apis_in_construct, py::object should_collect,
                       bool should_collect_by_name, py::object scope, py::object has_ignore_rule,
                       py::object apply_ignore_rule, py::object tensors_in, py::object plain_tensor,
                       py::object micro_step, py::object on_error) {
             const auto chosen = DumpStatistics::named(statistics);
             if (!chosen.has_value()) throw py::value_error("unknown statistics");
             return std::make_unique<Self>(
                 std::move(recorder), std::move(collector),
                 DumpCollectorOptions{
                     *chosen, forward_input, forward_output, backward_input, backward_output,
                     construct, apis_in_construct, std::move(should_collect),
                     should_collect_by_name, std::move(scope), std::move(has_ignore_rule),
                     std::move(apply_ignore_rule), std::move(tensors_in), std::move(plain_tensor),
                     std::move(micro_step), std::move(on_error)});
           }),
           py::arg("recorder"), py::arg("collector"), py::kw_only(), py::arg("statistics"),
           py::arg("forward_input"), py::arg("forward_output"), py::arg("backward_input"),
           py::arg("backward_output"), py::arg("construct"), py::arg("apis_in_construct"),
           py::arg("should_collect"), py::arg("should_collect_by_name"), py::arg("scope"),
           py::arg("has_ignore_rule"), py::arg("apply_ignore_rule"), py::arg("tensors_in"),
           py::arg("plain_tensor"), py::arg("micro_step"), py::arg("on_error"))
      .def("forward_input_data_collect",
           [](Self& self, const py::str& name, const py::handle& /*module*/, const py::handle& pid,
              const py::handle& inputs_outputs) {
             guarded(self.on_error(), [&] { self.forward_input(name, pid, inputs_outputs); });
           })
      .def("forward_output_data_collect",
           [](Self& self, const py::str& name, const py::handle& called, const py::handle& pid,
              const py::handle& inputs_outputs) {
             guarded(self.on_error(),
                     [&] { self.forward_output(name, called, pid, inputs_outputs); });
           })
      .def("backward_data_collect",
           [](Self& self, const py::str& name, const py::handle& /*module*/, const py::handle& pid,
              const py::handle& inputs_outputs) {
             guarded(self.on_error(), [&] { self.backward(name, pid, inputs_outputs); });
           })
      .def("params_data_collect",
           [](Self& self, const py::str& name, const py::str& parameter, std::int64_t pid,
              const py::handle& gradient, const py::str& index) {
             guarded(self.on_error(),
                     [&] { self.parameter_gradient(name, parameter, pid, gradient, index); });
           })
      // The name comes with every call.
      .def("update_api_or_module_name", [](Self& /*self*/, const py::handle& /*name*/) {})
      .def_property_readonly("is_empty", &Self::is_empty)
      .def(
          "submit",
          [](Self& self, std::int64_t training_step, bool complete) {
            return self.submit(training_step, complete);
          },
          py::arg("training_step"), py::kw_only(), py::arg("complete"));
}

}  // namespace trendprobe
