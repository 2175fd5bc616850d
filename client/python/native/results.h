// What comes back, as Python has it: answers with what was asked for, and errors as exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/status/status.h"
#include "client/cpp/batch.h"
#include "client/cpp/errors.h"

namespace sortition::python {

void BindResults(nanobind::module_& module);

// A Draw, a Verify or a Score, or an instance of sortition.Error. Under the GIL.
nanobind::object ToPython(client::RowResult result);
nanobind::object ToPython(std::vector<client::RowResult> results);

// Raise sortition.Error. Under the GIL.
[[noreturn]] void Raise(const client::RowError& error);
[[noreturn]] void Raise(const absl::Status& status);

// What `make` makes, which returns a StatusOr and is called without the GIL. Raises sortition.Error. Under the GIL.
template <typename Make>
auto MadeWithoutGil(const Make& make) {
  auto made = [&make] {
    const nanobind::gil_scoped_release released;
    return make();
  }();
  if (!made.ok()) Raise(made.status());
  return *std::move(made);
}

}  // namespace sortition::python
