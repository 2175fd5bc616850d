// The parts of the native module.
#pragma once

#include <nanobind/nanobind.h>

namespace sortition::python {

void BindClient(nanobind::module_& module);
void BindLocal(nanobind::module_& module);

}  // namespace sortition::python
