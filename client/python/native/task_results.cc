// Binds the results of verified drafts and scored tokens.
#include <nanobind/ndarray.h>
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

template <typename Answer>
std::vector<Logprobs> Parts(const Answer& answer, const google::protobuf::RepeatedPtrField<v1::Logprobs>& parts) {
  std::vector<Logprobs> list;
  for (const v1::Logprobs& part : parts) list.push_back({answer.message, &part});
  return list;
}

std::vector<std::vector<uint32_t>> KeptTokens(const google::protobuf::RepeatedPtrField<v1::KeptTokens>& pieces) {
  std::vector<std::vector<uint32_t>> kept;
  for (const v1::KeptTokens& piece : pieces) {
    kept.resize(std::max<size_t>(kept.size(), piece.index() + 1));
    kept[piece.index()].insert(kept[piece.index()].end(), piece.tokens().begin(), piece.tokens().end());
  }
  return kept;
}

// Returns a matrix with a row for each token of the result, or None.
nb::object Probabilities(const Verify& self) {
  const auto& pieces = self.message->probabilities();
  if (pieces.empty()) return nb::none();
  size_t rows = 0;
  size_t width = 0;
  for (const v1::ProbabilityPiece& piece : pieces) {
    rows = std::max<size_t>(rows, piece.index() + 1);
    width = std::max(width, piece.first_token() + piece.probabilities().size() / sizeof(float));
  }
  auto* const values = new std::vector<float>(rows * width);
  const nb::capsule owner(values, [](void* data) noexcept { delete static_cast<std::vector<float>*>(data); });
  for (const v1::ProbabilityPiece& piece : pieces) {
    std::memcpy(values->data() + piece.index() * width + piece.first_token(), piece.probabilities().data(),
                piece.probabilities().size());
  }
  const size_t shape[] = {rows, width};
  return nb::cast(nb::ndarray<nb::numpy, float>(values->data(), 2, shape, owner));
}

// Binds the parts that both results have, with one entry for each token.
template <typename Answer>
void BindTokens(nb::class_<Answer>* bound) {
  bound
      ->def_prop_ro(
          "raw", [](const Answer& self) { return Parts(self, self.message->raw()); },
          "Log probabilities of the rows as they came, if asked for: one for each token.")
      .def_prop_ro(
          "processed", [](const Answer& self) { return Parts(self, self.message->processed()); },
          "Log probabilities of the tokens that passed every filter, if asked for: one for each token.")
      .def_prop_ro("entropy", [](const Answer& self) { return ToVector(self.message->entropy()); })
      .def_prop_ro("kept_count", [](const Answer& self) { return ToVector(self.message->kept_count()); })
      .def_prop_ro(
          "kept_tokens", [](const Answer& self) { return KeptTokens(self.message->kept_tokens()); },
          "Ids of the tokens that passed every filter, ascending, if asked for: a list for each token.");
}

}  // namespace

void BindTaskResults(nb::module_& module) {
  nb::class_<Verify> verify(module, "Verify", "Accepted drafts and the token after them, and what was asked for.");
  verify
      .def_prop_ro(
          "accepted", [](const Verify& self) { return self.message->accepted(); },
          "How many drafts are accepted: what to commit by.")
      .def_prop_ro(
          "tokens", [](const Verify& self) { return ToVector(self.message->tokens()); },
          "The accepted drafts and the token after them; none is after a draft that is a stop token.")
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
      .def("__repr__", [](const Verify& self) {
        return "<sortition.Verify accepted=" + std::to_string(self.message->accepted()) + ">";
      });
  BindTokens(&verify);
  BindMessage(&verify, "The answer as a sortition.v1.VerifyResult message.");

  nb::class_<Score> score(module, "Score", "Log probabilities of given tokens, and what else was asked for.");
  score.def("__repr__", [](const Score&) { return "<sortition.Score>"; });
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
