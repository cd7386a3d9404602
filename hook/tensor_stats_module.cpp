// The extension module trendprobe._tensor_stats; _tensor_stats.pyi documents it.
//
// Plain CPython calls: a tiny tensor is measured faster than a binding library converts the result.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/version.h>

#include <array>
#include <exception>
#include <optional>
#include <string>

#include "hook/device_slab_module.h"
#include "hook/dump_collector.h"
#include "hook/model_monitor_module.h"
#include "hook/near_zeros_module.h"
#include "hook/torch_tensor_stats.h"

namespace trendprobe {
namespace {

// Below this many elements another thread gains less from Python's lock than the two changes cost.
constexpr std::int64_t kMinElementsToUnlock = 16384;

// Fields of a Statistics, and how many of them it shows as a tuple.
constexpr std::size_t kFields = 9;
constexpr int kSequenceFields = 8;

PyTypeObject* statistics_type = nullptr;

// Null if it is no tensor. Asks the type alone: isinstance() could run an impostor's Python code.
const at::Tensor* tensor_of(PyObject* object) {
  if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
    return nullptr;
  }
  return &THPVariable_Unpack(object);
}

// Gives Python's lock back for as long as it lives.
class Unlocked {
 public:
  explicit Unlocked(bool really) : state_(really ? PyEval_SaveThread() : nullptr) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

std::optional<TensorStatistics> measure_unlocked(const at::Tensor& tensor,
                                                 MeasureAlso also) noexcept {
  try {
    // Keeps the memory alive while the lock is given back.
    const at::Tensor found = measurable(tensor);
    if (!found.defined()) return std::nullopt;
    const Unlocked unlocked(found.numel() >= kMinElementsToUnlock);
    return measure(found, also);
  } catch (...) {
    return std::nullopt;
  }
}

PyObject* to_python(const TensorStatistics& statistics, MeasureAlso also) {
  const std::array<PyObject*, kFields> fields = {PyFloat_FromDouble(statistics.norm),
                                                 PyFloat_FromDouble(statistics.max),
                                                 PyFloat_FromDouble(statistics.min),
                                                 PyFloat_FromDouble(statistics.mean),
                                                 PyLong_FromLongLong(statistics.nans),
                                                 PyLong_FromLongLong(statistics.infs),
                                                 PyLong_FromLongLong(statistics.zeros),
                                                 PyLong_FromLongLong(statistics.count),
                                                 also == MeasureAlso::kStandardDeviation
                                                     ? PyFloat_FromDouble(statistics.std)
                                                     : Py_NewRef(Py_None)};
  PyObject* result = PyStructSequence_New(statistics_type);
  bool is_complete = result != nullptr;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    is_complete = is_complete && fields[i] != nullptr;
    if (result != nullptr) {
      PyStructSequence_SET_ITEM(result, static_cast<Py_ssize_t>(i), fields[i]);
    } else {
      Py_XDECREF(fields[i]);
    }
  }
  if (!is_complete) Py_CLEAR(result);  // with the MemoryError set
  return result;
}

struct Arguments {
  const at::Tensor* tensor = nullptr;  // null: it is none
  MeasureAlso also = MeasureAlso::kNothing;
};

// (tensor, with_std=False). Nothing, with the TypeError set, where they are others.
std::optional<Arguments> parse(const char* function, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1 || count > 2 || (count == 2 && PyBool_Check(arguments[1]) == 0)) {
    PyErr_Format(PyExc_TypeError, "%s() takes a tensor and, if at all, with_std: True or False",
                 function);
    return std::nullopt;
  }
  const bool with_std = count == 2 && arguments[1] == Py_True;
  return Arguments{tensor_of(arguments[0]),
                   with_std ? MeasureAlso::kStandardDeviation : MeasureAlso::kNothing};
}

PyObject* python_measure(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  const auto parsed = parse("measure", arguments, count);
  if (!parsed.has_value()) return nullptr;
  if (parsed->tensor == nullptr) Py_RETURN_NONE;
  const auto statistics = measure_unlocked(*parsed->tensor, parsed->also);
  if (!statistics.has_value()) Py_RETURN_NONE;
  return to_python(*statistics, parsed->also);
}

PyObject* python_measure_on_device(PyObject* /*module*/, PyObject* const* arguments,
                                   Py_ssize_t count) {
  const auto parsed = parse("measure_on_device", arguments, count);
  if (!parsed.has_value()) return nullptr;
  if (parsed->tensor == nullptr) Py_RETURN_NONE;
  const at::Tensor statistics = measure_on_device(*parsed->tensor, parsed->also);
  if (!statistics.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(statistics);
}

// Tensors are read as this torch's headers lay them out in memory.
bool is_torch_as_compiled() {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* version = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "__version__");
  const char* text = version == nullptr ? nullptr : PyUnicode_AsUTF8(version);
  const std::string found = text == nullptr ? "" : text;
  Py_XDECREF(version);
  Py_XDECREF(torch);
  if (text == nullptr) return false;
  // "2.13.0+cpu" and "2.13.0a0" are 2.13.0 as far as memory is concerned.
  const std::string expected = TORCH_VERSION;
  if (found.compare(0, expected.size(), expected) == 0 &&
      (found.size() == expected.size() || found[expected.size()] < '0' ||
       found[expected.size()] > '9')) {
    return true;
  }
  PyErr_Format(PyExc_ImportError,
               "trendprobe._tensor_stats was built for torch %s, but this is torch %s: build "
               "TrendProbe again in this environment",
               expected.c_str(), found.c_str());
  return false;
}

// METH_FASTCALL says what the function really takes.
PyCFunction fast_call(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// False, with the error set, where it could not be done.
bool define_classes(PyObject* module) {
  try {
    auto target = pybind11::reinterpret_borrow<pybind11::module_>(module);
    define_device_slab(target);
    define_dump_collector(target);
    define_model_monitor(target);
    define_near_zeros(target);
    return true;
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
  }
  return false;
}

PyObject* create_module() {
  static std::array<PyMethodDef, 3> methods = {
      PyMethodDef{"measure", fast_call(python_measure), METH_FASTCALL,
                  "The statistics of a tensor, or None."},
      PyMethodDef{"measure_on_device", fast_call(python_measure_on_device), METH_FASTCALL,
                  "The statistics of a tensor as a tensor on its own device, or None."},
      PyMethodDef{nullptr, nullptr, 0, nullptr}};
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                   "trendprobe._tensor_stats",
                                   "Statistics of tensors in one pass.",
                                   -1,
                                   methods.data(),
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};
  static std::array<PyStructSequence_Field, kFields + 1> fields = {
      PyStructSequence_Field{"norm", "L2 norm"},
      PyStructSequence_Field{"max", "greatest element"},
      PyStructSequence_Field{"min", "least element"},
      PyStructSequence_Field{"mean", "arithmetic mean"},
      PyStructSequence_Field{"nans", "number of elements that are NaN"},
      PyStructSequence_Field{"infs", "number of elements that are +inf or -inf"},
      PyStructSequence_Field{"zeros", "number of elements that are 0"},
      PyStructSequence_Field{"count", "number of elements"},
      PyStructSequence_Field{"std", "standard deviation, None if it was not asked for"},
      PyStructSequence_Field{nullptr, nullptr}};
  static PyStructSequence_Desc description = {"trendprobe._tensor_stats.Statistics",
                                              "Statistics of one tensor.", fields.data(),
                                              kSequenceFields};
  if (!is_torch_as_compiled()) return nullptr;
  statistics_type = PyStructSequence_NewType(&description);
  if (statistics_type == nullptr) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr ||
      PyModule_AddObjectRef(module, "Statistics", reinterpret_cast<PyObject*>(statistics_type)) <
          0 ||
      !define_classes(module)) {
    Py_CLEAR(module);
  }
  return module;
}

}  // namespace
}  // namespace trendprobe

// NOLINTNEXTLINE(bugprone-reserved-identifier): Python looks for this name.
PyMODINIT_FUNC PyInit__tensor_stats() { return trendprobe::create_module(); }
