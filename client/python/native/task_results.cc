// Binds the results of verified drafts and scored tokens.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/python/native/logprobs.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

struct Verify {
  std::shared_ptr<const v1::VerifyResult> message;
};

struct Score {
  std::shared_ptr<const v1::ScoreResult> message;
};

using Positions = google::protobuf::RepeatedPtrField<v1::Position>;

// The log probabilities of each token that has them.
template <typename Answer>
std::vector<Logprobs> LogprobsOf(const Answer& answer, bool (v1::Position::*has)() const,
                                 const v1::Logprobs& (v1::Position::*get)() const) {
  std::vector<Logprobs> list;
  for (const v1::Position& position : answer.message->positions()) {
    if ((position.*has)()) list.push_back({answer.message, &(position.*get)()});
  }
  return list;
}

// The value of each token that has one.
template <typename Value>
std::vector<Value> ValuesOf(const Positions& positions, bool (v1::Position::*has)() const,
                            Value (v1::Position::*get)() const) {
  std::vector<Value> values;
  for (const v1::Position& position : positions) {
    if ((position.*has)()) values.push_back((position.*get)());
  }
  return values;
}

std::vector<uint32_t> PhasesOf(const Positions& positions) {
  std::vector<uint32_t> phases;
  for (const v1::Position& position : positions) phases.push_back(position.phase());
  return phases;
}

std::vector<uint32_t> TokensOf(const Positions& positions) {
  std::vector<uint32_t> tokens;
  for (const v1::Position& position : positions) tokens.push_back(position.token());
  return tokens;
}

// Every token keeps at least one token, so an empty list means that none was requested.
std::vector<std::vector<uint32_t>> KeptTokens(const Positions& positions) {
  std::vector<std::vector<uint32_t>> kept;
  for (const v1::Position& position : positions) {
    if (!position.kept_tokens().empty()) kept.push_back(ToVector(position.kept_tokens()));
  }
  return kept;
}

// Returns a matrix with a row for each token of the result, or None.
nb::object Probabilities(const Verify& self) {
  const Positions& positions = self.message->positions();
  if (positions.empty() || positions[0].probabilities().empty()) return nb::none();
  const auto rows = static_cast<size_t>(positions.size());
  const size_t bytes = positions[0].probabilities().size();
  const size_t width = bytes / sizeof(float);
  auto* const values = new std::vector<float>(rows * width);
  const nb::capsule owner(values, [](void* data) noexcept { delete static_cast<std::vector<float>*>(data); });
  for (size_t row = 0; row < rows; ++row) {
    const std::string& probabilities = positions[static_cast<int>(row)].probabilities();
    std::memcpy(values->data() + row * width, probabilities.data(), std::min(bytes, probabilities.size()));
  }
  const size_t shape[] = {rows, width};
  return nb::cast(nb::ndarray<nb::numpy, float>(values->data(), 2, shape, owner));
}

// Binds the parts that both results have, with one entry for each token.
template <typename Answer>
void BindTokens(nb::class_<Answer>* bound) {
  bound
      ->def_prop_ro(
          "phases", [](const Answer& self) { return PhasesOf(self.message->positions()); },
          "The phase of each token: 1 is the first of the parameters' phases, 0 outside of all.")
      .def_prop_ro(
          "raw", [](const Answer& self) { return LogprobsOf(self, &v1::Position::has_raw, &v1::Position::raw); },
          "Log probabilities of the rows as they came, if asked for: one for each token.")
      .def_prop_ro(
          "processed",
          [](const Answer& self) { return LogprobsOf(self, &v1::Position::has_processed, &v1::Position::processed); },
          "Log probabilities of the tokens that passed every filter, if asked for: one for each token.")
      .def_prop_ro(
          "tempered",
          [](const Answer& self) { return LogprobsOf(self, &v1::Position::has_tempered, &v1::Position::tempered); },
          "Log probabilities after the temperature and before the filters, if asked for: one for each token.")
      .def_prop_ro(
          "kept_log_mass",
          [](const Answer& self) {
            return ValuesOf(self.message->positions(), &v1::Position::has_kept_log_mass, &v1::Position::kept_log_mass);
          },
          "Logarithm of the kept tokens' mass in the tempered distribution, if asked for: one for each token.")
      .def_prop_ro("entropy",
                   [](const Answer& self) {
                     return ValuesOf(self.message->positions(), &v1::Position::has_entropy, &v1::Position::entropy);
                   })
      .def_prop_ro("kept_count",
                   [](const Answer& self) {
                     return ValuesOf(self.message->positions(), &v1::Position::has_kept_count,
                                     &v1::Position::kept_count);
                   })
      .def_prop_ro(
          "kept_tokens", [](const Answer& self) { return KeptTokens(self.message->positions()); },
          "Ids of the tokens that passed every filter, ascending, if asked for: a list for each token.");
}

template <typename Answer>
bool AppendSetsOf(nb::handle result, KeptSets* sets) {
  const Answer* answer = nullptr;
  if (!nb::try_cast(result, answer) || answer == nullptr) return false;
  for (const v1::Position& position : answer->message->positions()) sets->push_back(&position.kept_tokens());
  return true;
}

}  // namespace

bool AppendKeptSets(nb::handle result, KeptSets* sets) {
  return AppendSetsOf<Verify>(result, sets) || AppendSetsOf<Score>(result, sets);
}

void BindTaskResults(nb::module_& module) {
  nb::class_<Verify> verify(module, "Verify", "Accepted drafts and the token after them, and what was asked for.");
  verify
      .def_prop_ro(
          "accepted", [](const Verify& self) { return self.message->accepted(); },
          "How many drafts are accepted: what to commit by.")
      .def_prop_ro(
          "tokens", [](const Verify& self) { return TokensOf(self.message->positions()); },
          "The accepted drafts and the token after them; none is after a draft that ends the result.")
      .def_prop_ro(
          "path", [](const Verify& self) { return ToVector(self.message->path()); },
          "Of a tree: the accepted drafts, as indices.")
      .def_prop_ro(
          "matched", [](const Verify& self) { return self.message->matched(); },
          "Telemetry: how many drafts passed at their own position.")
      .def_prop_ro(
          "position_matched", [](const Verify& self) { return ToVector(self.message->position_matched()); },
          "Telemetry: which.")
      .def_prop_ro("probabilities", &Probabilities, nb::sig("def probabilities(self) -> numpy.ndarray | None"),
                   "After every filter, if asked for: float32, a row for each of `tokens`.")
      .def_prop_ro(
          "stopped", [](const Verify& self) { return self.message->finish_reason() == v1::FINISH_REASON_STOP_TOKEN; },
          "Whether one of `tokens` is a stop token of the sequence.")
      .def_prop_ro("repeats", &Repeats<Verify>, "Whether the output ends in a repetition (repetition_stop).")
      .def_prop_ro("rewind", &RewindOf<Verify>, nb::sig("def rewind(self) -> tuple[int, list[int]] | None"),
                   kRewindHelp)
      .def("__repr__", [](const Verify& self) {
        return "<sortition.Verify accepted=" + std::to_string(self.message->accepted()) + ">";
      });
  BindTokens(&verify);
  BindMessage(&verify, "The answer as a sortition.v1.VerifyResult message.");

  nb::class_<Score> score(module, "Score", "Log probabilities of given tokens, and what else was asked for.");
  score.def("__repr__", [](const Score&) { return "<sortition.Score>"; });
  score.def_prop_ro(
      "race",
      [](const Score& self) -> std::optional<std::vector<std::pair<uint32_t, float>>> {
        std::vector<std::pair<uint32_t, float>> places;
        for (const v1::Position& position : self.message->positions()) {
          if (!position.has_race()) return std::nullopt;
          places.emplace_back(position.race().rank(), position.race().margin());
        }
        return places;
      },
      "Where each token stands in the race, if asked for: its rank, and the nats that it lacked. Rank 1 would have "
      "been "
      "drawn; rank 0 was filtered out.");
  BindTokens(&score);
  BindMessage(&score, "The answer as a sortition.v1.ScoreResult message.");
}

nb::object ToPython(v1::VerifyResult result) {
  return nb::cast(Verify{std::make_shared<const v1::VerifyResult>(std::move(result))});
}

nb::object ToPython(v1::ScoreResult result) {
  return nb::cast(Score{std::make_shared<const v1::ScoreResult>(std::move(result))});
}

}  // namespace sortition::python
