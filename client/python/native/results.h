// Converts results to Python objects, and errors to exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/status/status.h"
#include "client/cpp/transport/wire_errors.h"
#include "sortition/batch.h"

namespace sortition::python {

void BindResults(nanobind::module_& module);

// Returns a Draw, a Verify, a Score or a sortition.Error. Called under the GIL.
nanobind::object ToPython(client::RowResult result);
nanobind::object ToPython(std::vector<client::RowResult> results);

// Returns the tokens of rows that draw as an array of int32, -1 where a row failed, and a dict of sortition.Error by
// row. Called under the GIL.
nanobind::tuple ToTokens(const std::vector<client::RowResult>& results);

// Raise sortition.Error. Called under the GIL.
[[noreturn]] void Raise(const client::RowError& error);
[[noreturn]] void Raise(const absl::Status& status);

// Returns the value of `make`, which returns a StatusOr and runs without the GIL. Raises sortition.Error. Called under
// the GIL.
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
