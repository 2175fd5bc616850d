// Binds draws, log probabilities and errors.
#include "client/python/native/results.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/python/native/logprobs.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

struct Draw {
  std::shared_ptr<const v1::DrawResult> message;

  std::optional<Logprobs> Part(bool present, const v1::Logprobs& part) const {
    return present ? std::optional<Logprobs>({message, &part}) : std::nullopt;
  }
};

nb::object MakeError(const std::string& code, const std::string& reason, const client::RowError& error) {
  const nb::object retry_after = error.retry_after > absl::ZeroDuration()
                                     ? nb::cast(absl::ToDoubleSeconds(error.retry_after))
                                     : nb::object(nb::none());
  return nb::module_::import_("sortition.errors")
      .attr("Error")(error.message, code, reason, error.field, error.limit, retry_after);
}

nb::object ToPythonError(const client::RowError& error) {
  const std::string reason = v1::ErrorReason_IsValid(error.reason) && error.reason != v1::ERROR_REASON_UNSPECIFIED
                                 ? v1::ErrorReason_Name(error.reason)
                                 : std::string();
  return MakeError(absl::StatusCodeToString(error.code), reason, error);
}

template <typename Number>
nb::ndarray<nb::numpy, Number> Owned(std::vector<Number> numbers) {
  auto* const kept = new std::vector<Number>(std::move(numbers));
  const nb::capsule owner(kept, [](void* data) noexcept { delete static_cast<std::vector<Number>*>(data); });
  const size_t shape[] = {kept->size()};
  return nb::ndarray<nb::numpy, Number>(kept->data(), 1, shape, owner);
}

// Returns the kept sets of all results in one array, and where each begins. Errors have an empty set.
nb::tuple KeptSetsOf(nb::list results) {
  static const google::protobuf::RepeatedField<uint32_t> kNone;
  KeptSets sets;
  for (size_t row = 0; row < nb::len(results); ++row) {
    const nb::handle result = results[row];
    const size_t first = sets.size();
    const Draw* draw = nullptr;
    if (nb::try_cast(result, draw) && draw != nullptr) {
      sets.push_back(&draw->message->kept_tokens());
    } else if (!AppendKeptSets(result, &sets)) {
      sets.push_back(&kNone);
      continue;
    }
    // Every token was drawn from a set that is not empty.
    for (size_t i = first; i < sets.size(); ++i) {
      if (!sets[i]->empty()) continue;
      throw nb::value_error(
          ("results: row " + std::to_string(row) + " has no kept tokens: open its sequence with kept_set.tokens")
              .c_str());
    }
  }
  std::vector<int64_t> offsets = {0};
  for (const auto* set : sets) offsets.push_back(offsets.back() + set->size());
  std::vector<int32_t> ids(static_cast<size_t>(offsets.back()));
  int32_t* to = ids.data();
  for (const auto* set : sets) to = std::ranges::copy(*set, to).out;
  return nb::make_tuple(Owned(std::move(ids)), Owned(std::move(offsets)));
}

}  // namespace

void BindResults(nb::module_& module) {
  nb::class_<Logprobs>(module, "Logprobs", "Log probabilities of one distribution, natural logarithms.")
      .def_prop_ro(
          "logprob", [](const Logprobs& self) { return self.message->logprob(); },
          "Of the drawn token; -inf where it is not in the distribution.")
      .def_prop_ro(
          "rank", [](const Logprobs& self) { return self.message->rank(); },
          "Of the drawn token: 1 is first; 0 where it is not in the distribution.")
      .def_prop_ro(
          "top_tokens", [](const Logprobs& self) { return ToVector(self.message->top_tokens()); },
          "The alternatives asked for, first in order.")
      .def_prop_ro("top_logprobs", [](const Logprobs& self) { return ToVector(self.message->top_logprobs()); })
      .def_prop_ro(
          "requested_logprobs", [](const Logprobs& self) { return ToVector(self.message->requested_logprobs()); },
          "Of the ids asked for by name, in that order.")
      .def_prop_ro("requested_ranks", [](const Logprobs& self) { return ToVector(self.message->requested_ranks()); });

  nb::class_<Draw> draw(module, "Draw", "A drawn token, and what was asked for with it.");
  draw.def_prop_ro("token", [](const Draw& self) { return self.message->token(); })
      .def_prop_ro(
          "phase", [](const Draw& self) { return self.message->phase(); },
          "The phase in which it was drawn: 1 is the first of the parameters' phases, 0 outside of all.")
      .def_prop_ro(
          "raw", [](const Draw& self) { return self.Part(self.message->has_raw(), self.message->raw()); },
          "Log probabilities of the row as it came, if asked for.")
      .def_prop_ro(
          "processed",
          [](const Draw& self) { return self.Part(self.message->has_processed(), self.message->processed()); },
          "Log probabilities of the tokens that passed every filter, if asked for.")
      .def_prop_ro(
          "tempered",
          [](const Draw& self) { return self.Part(self.message->has_tempered(), self.message->tempered()); },
          "Log probabilities after the temperature and before the filters, if asked for.")
      .def_prop_ro(
          "kept_log_mass",
          [](const Draw& self) {
            return self.message->has_kept_log_mass() ? std::optional(self.message->kept_log_mass()) : std::nullopt;
          },
          "Logarithm of the kept tokens' mass in the tempered distribution, if asked for.")
      .def_prop_ro("kept_count",
                   [](const Draw& self) {
                     return self.message->has_kept_count() ? std::optional(self.message->kept_count()) : std::nullopt;
                   })
      .def_prop_ro(
          "kept_tokens", [](const Draw& self) { return ToVector(self.message->kept_tokens()); },
          "Ids of the tokens that passed every filter, ascending, if asked for.")
      .def_prop_ro("entropy",
                   [](const Draw& self) {
                     return self.message->has_entropy() ? std::optional(self.message->entropy()) : std::nullopt;
                   })
      .def_prop_ro(
          "stopped", [](const Draw& self) { return self.message->finish_reason() == v1::FINISH_REASON_STOP_TOKEN; },
          "Whether the token is a stop token of the sequence.")
      .def_prop_ro("repeats", &Repeats<Draw>, "Whether the output ends in a repetition (repetition_stop).")
      .def_prop_ro("rewind", &RewindOf<Draw>, nb::sig("def rewind(self) -> tuple[int, list[int]] | None"), kRewindHelp)
      .def("__repr__",
           [](const Draw& self) { return "<sortition.Draw token=" + std::to_string(self.message->token()) + ">"; });
  BindMessage(&draw, "The answer as a sortition.v1.DrawResult message.");
  BindTaskResults(module);
  module.def("kept_sets", &KeptSetsOf, nb::arg("results"));
}

nb::object ToPython(client::RowResult result) {
  if (const auto* error = std::get_if<client::RowError>(&result)) return ToPythonError(*error);
  if (auto* verify = std::get_if<v1::VerifyResult>(&result)) return ToPython(std::move(*verify));
  if (auto* score = std::get_if<v1::ScoreResult>(&result)) return ToPython(std::move(*score));
  return nb::cast(Draw{std::make_shared<const v1::DrawResult>(std::move(std::get<v1::DrawResult>(result)))});
}

nb::object ToPython(std::vector<client::RowResult> results) {
  nb::list list;
  for (client::RowResult& result : results) list.append(ToPython(std::move(result)));
  return list;
}

nb::tuple ToTokens(const std::vector<client::RowResult>& results) {
  std::vector<int32_t> tokens(results.size(), -1);
  nb::dict errors;
  for (size_t row = 0; row < results.size(); ++row) {
    if (const auto* error = std::get_if<client::RowError>(&results[row])) {
      errors[nb::int_(row)] = ToPythonError(*error);
    } else {
      tokens[row] = static_cast<int32_t>(std::get<v1::DrawResult>(results[row]).token());
    }
  }
  return nb::make_tuple(Owned(std::move(tokens)), errors);
}

void Raise(const client::RowError& error) {
  const nb::object exception = ToPythonError(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void Raise(const absl::Status& status) {
  if (const auto error = client::ErrorOf(status)) Raise(*error);
  client::RowError plain;
  plain.code = status.code();
  plain.message = std::string(status.message());
  Raise(plain);
}

}  // namespace sortition::python
