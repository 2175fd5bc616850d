// The parts of the native module.
#pragma once

#include <nanobind/nanobind.h>

namespace sortition::python {

void BindClient(nanobind::module_& module);
void BindLocal(nanobind::module_& module);

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

}  // namespace sortition::python
