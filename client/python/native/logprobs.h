// Parts that several kinds of results have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::python {

// The log probabilities in a result, which they keep alive.
struct Logprobs {
  std::shared_ptr<const void> owner;
  const v1::Logprobs* message;
};

template <typename Repeated>
auto ToVector(const Repeated& repeated) {
  return std::vector<typename Repeated::value_type>(repeated.begin(), repeated.end());
}

// Binds the methods that all classes of results have: conversion to bytes, and equality.
template <typename Result>
void BindMessage(nanobind::class_<Result>* bound, const char* bytes_are) {
  bound
      ->def(
          "to_bytes",
          [](const Result& self) {
            const std::string bytes = self.message->SerializeAsString();
            return nanobind::bytes(bytes.data(), bytes.size());
          },
          bytes_are)
      .def("__eq__", [](const Result& self, const Result& other) {
        return self.message->SerializeAsString() == other.message->SerializeAsString();
      });
}

// The end of the text of a Draw or a Verify.
template <typename Result>
bool Repeats(const Result& self) {
  return self.message->finish_reason() == v1::FINISH_REASON_REPETITION;
}
inline constexpr char kRewindHelp[] =
    "The banned phrase that the text has ended in, as its position and tokens. The sequence has been cut there, and "
    "its "
    "next draw there begins with another token.";
template <typename Result>
std::optional<std::pair<uint32_t, std::vector<uint32_t>>> RewindOf(const Result& self) {
  if (!self.message->has_rewind()) return std::nullopt;
  return std::pair(self.message->rewind().position(), ToVector(self.message->rewind().tokens()));
}

// Kept sets of results, in order. They are parts of the results' messages.
using KeptSets = std::vector<const google::protobuf::RepeatedField<uint32_t>*>;

// Appends the kept sets of a Verify or a Score, one for each token. Returns false if `result` is neither.
bool AppendKeptSets(nanobind::handle result, KeptSets* sets);

// Results of rows with drafts and of scored rows.
void BindTaskResults(nanobind::module_& module);
nanobind::object ToPython(v1::VerifyResult result);
nanobind::object ToPython(v1::ScoreResult result);

}  // namespace sortition::python
