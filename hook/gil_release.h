// Lets other Python threads run while C++ works.
#pragma once

#include <Python.h>

namespace trendprobe {

/// Releases the interpreter lock for its lifetime. Unlike pybind11::gil_scoped_release its
/// destructor lets a forced unwinding pass: when the interpreter shuts down, taking the lock ends
/// the calling thread, which in a destructor that may not throw would end the whole process by
/// std::terminate.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() noexcept(false) { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

}  // namespace trendprobe
