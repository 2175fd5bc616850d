// A model whose logits follow from the text, and a stream on which its rows are judged.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/session.h"

namespace sortition::service {

inline constexpr uint32_t kModelVocabulary = 48;

// Its logits after `text`, as their bytes; other models have other numbers.
inline std::string LogitsAfter(const std::vector<uint32_t>& text, uint64_t model) {
  uint64_t seed = model;
  for (const uint32_t token : text) seed = (seed ^ token) * 0x9e3779b97f4a7c15;
  std::mt19937_64 random(seed);
  std::vector<float> logits(kModelVocabulary);
  for (float& x : logits) x = float(random() % 4096) / 1024;
  return F32Bytes(logits);
}

// One text as it grows without speculation, and as the worker writes it.
struct Writer {
  Writer(const v1::OpenSequence& open, uint64_t number)
      : model(number), plain(open), text(open.history().tokens().begin(), open.history().tokens().end()) {}

  // Returns the answer for the token that follows `ahead` in the text.
  v1::DrawResult Right(const std::vector<uint32_t>& ahead) const {
    PlainSequence then = plain;
    std::vector<uint32_t> longer = text;
    for (const uint32_t token : ahead) {
      then.Append(token);
      longer.push_back(token);
    }
    return then.Draw({.logits = LogitsAfter(longer, model)}, static_cast<uint32_t>(longer.size()));
  }
  std::string LogitsOf(const std::vector<uint32_t>& ahead) const {
    std::vector<uint32_t> longer = text;
    longer.insert(longer.end(), ahead.begin(), ahead.end());
    return LogitsAfter(longer, model);
  }
  void Append(uint32_t token) {
    plain.Append(token);
    text.push_back(token);
  }
  void TruncateTo(uint32_t position) {
    plain.TruncateTo(position);
    text.resize(position);
  }

  uint64_t model;
  PlainSequence plain;
  std::vector<uint32_t> text;
  uint64_t step_id = 0;
  uint32_t server_position = 0;  // tokens that the server holds
};

// A sequence "a" to be opened, without state, that returns processed logprobs.
class JudgedRows : public ::testing::Test {
 protected:
  JudgedRows() {
    open_ = MakeOpen("a", 1, kModelVocabulary);
    open_.set_seed(99);
    open_.mutable_parameters()->mutable_processed_logprobs();
  }
  // Rows of this stream's own model.
  static std::string Logits(uint64_t number) { return LogitsAfter({}, 5000 + number); }

  v1::RowResult RunOne(const StepBuilder& step) { return worker_.RunOne(step.Build()); }
  v1::VerifyResult RunVerify(const StepBuilder& step) {
    const v1::RowResult result = RunOne(step);
    EXPECT_TRUE(result.has_verify()) << result.ShortDebugString();
    return result.verify();
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
  v1::OpenSequence open_;
};

}  // namespace sortition::service
