// Parts of answers that several kinds of answer have.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::python {

// A part of an answer, which it keeps alive.
struct Logprobs {
  std::shared_ptr<const void> owner;
  const v1::Logprobs* message;
};

template <typename Repeated>
auto ToVector(const Repeated& repeated) {
  return std::vector<typename Repeated::value_type>(repeated.begin(), repeated.end());
}

// What every class of answers has, whatever its message: bytes and equality.
template <typename Answer>
void BindMessage(nanobind::class_<Answer>* bound, const char* bytes_are) {
  bound
      ->def(
          "to_bytes",
          [](const Answer& self) {
            const std::string bytes = self.message->SerializeAsString();
            return nanobind::bytes(bytes.data(), bytes.size());
          },
          bytes_are)
      .def("__eq__", [](const Answer& self, const Answer& other) {
        return self.message->SerializeAsString() == other.message->SerializeAsString();
      });
}

// Answers to drafts and scores.
void BindTaskResults(nanobind::module_& module);
nanobind::object ToPython(v1::VerifyResult result);
nanobind::object ToPython(v1::ScoreResult result);

}  // namespace sortition::python
