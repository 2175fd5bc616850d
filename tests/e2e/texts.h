// Several sequences sampled side by side by the client and by the plain reference, and compared token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sortition/client.h"
#include "tests/client/reference_sequence.h"

namespace sortition::testing {

// Returns one of four kinds of parameters in turn, with and without state.
v1::SamplingParameters TextParameters(int i);

class Texts {
 public:
  static constexpr uint32_t kVocabulary = 2000;

  // Opens sequences of mixed parameters, with and without state. `name` keeps the request ids of several Texts apart.
  Texts(client::Client* client, const std::string& name, int count = 6);

  // Steps one batch of a row for each sequence; blocks. Fails the test where a result differs from the reference.
  void Step(const client::StepOptions& options = {});
  // The same in two halves; the rows' memory is this object's.
  void Begin(const client::StepOptions& options = {});
  void End();

  // Tokens drawn so far, by each sequence.
  int steps() const { return steps_; }
  client::Sequence& sequence(size_t i) { return *texts_[i].sequence; }

 private:
  struct Text {
    std::unique_ptr<client::Sequence> sequence;
    std::unique_ptr<ReferenceSequence> reference;
    std::vector<std::byte> row;
  };
  struct Pending;

  client::Client& client_;
  std::vector<Text> texts_;
  std::shared_ptr<Pending> pending_;
  int steps_ = 0;
};

}  // namespace sortition::testing
