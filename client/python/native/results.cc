// Binds draws, log probabilities and errors.
#include "client/python/native/results.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cctype>
#include <cstdint>
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

// Returns a vector that owns its memory, as a numpy array.
nb::object ToArray(std::vector<int32_t> values) {
  auto* const kept = new std::vector<int32_t>(std::move(values));
  const nb::capsule owner(kept, [](void* data) noexcept { delete static_cast<std::vector<int32_t>*>(data); });
  const size_t shape[] = {kept->size()};
  return nb::cast(nb::ndarray<nb::numpy, int32_t>(kept->data(), 1, shape, owner));
}

// The kept tokens of all results, one after the other, and how many there are of each drawn token.
nb::tuple KeptRows(const nb::list& results) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> counts;
  const auto append = [&](const google::protobuf::RepeatedField<uint32_t>& kept) {
    tokens.insert(tokens.end(), kept.begin(), kept.end());
    counts.push_back(kept.size());
  };
  for (const nb::handle result : results) {
    const Draw* draw = nullptr;
    if (nb::try_cast(result, draw) && draw != nullptr) {
      append(draw->message->kept_tokens());
    } else if (const v1::VerifyResult* verify = VerifyOf(result)) {
      for (const v1::Position& position : verify->positions()) append(position.kept_tokens());
    }
  }
  return nb::make_tuple(ToArray(std::move(tokens)), ToArray(std::move(counts)));
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
          "raw", [](const Draw& self) { return self.Part(self.message->has_raw(), self.message->raw()); },
          "Log probabilities of the row as it came, if asked for.")
      .def_prop_ro(
          "processed",
          [](const Draw& self) { return self.Part(self.message->has_processed(), self.message->processed()); },
          "Log probabilities of the tokens that passed every filter, if asked for.")
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
      .def("__repr__",
           [](const Draw& self) { return "<sortition.Draw token=" + std::to_string(self.message->token()) + ">"; });
  BindMessage(&draw, "The answer as a sortition.v1.DrawResult message.");
  BindTaskResults(module);
  module.def(
      "kept_rows", &KeptRows, nb::arg("results"),
      nb::sig("def kept_rows(results: list) -> tuple[numpy.ndarray, numpy.ndarray]"),
      "The kept tokens of a step's results as two int32 arrays: all ids in order, and their number for each drawn "
      "token. An Error has none.");
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
