// The parts of the native module.
#pragma once

#include <nanobind/nanobind.h>

#include <thread>

namespace sortition::python {

void BindClient(nanobind::module_& module);
void BindLocal(nanobind::module_& module);

// While a thread of a client's runs a callback, in which the last reference to anything may go: the collector of
// garbage runs wherever memory is asked for.
class InCallback {
 public:
  InCallback() { here_ = true; }
  ~InCallback() { here_ = false; }
  static bool here() { return here_; }

 private:
  static thread_local bool here_;
};

// Ends what waits for a device or a server, from wherever the last reference goes.
struct DeleteWithoutGil {
  template <typename T>
  void operator()(T* last) const {
    if (PyGILState_Check() == 0) {
      delete last;
      return;
    }
    nanobind::gil_scoped_release released;
    delete last;
  }
};

// Likewise what waits until a device has done all its work. In a callback another thread does: that work may be waiting
// for the answer that the callback's thread brings next.
struct DeleteAfterDevice {
  template <typename T>
  void operator()(T* last) const {
    if (InCallback::here()) {
      std::thread([last] { delete last; }).detach();
    } else {
      DeleteWithoutGil()(last);
    }
  }
};

}  // namespace sortition::python
