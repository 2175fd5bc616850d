// Opening, stepping and comparing.
#include "tests/e2e/texts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/client/rows.h"

namespace sortition::testing {
v1::SamplingParameters TextParameters(int i) {
  v1::SamplingParameters parameters;
  parameters.mutable_raw_logprobs()->set_top(static_cast<uint32_t>(i) % 3);
  switch (i % 4) {
    case 0:
      parameters.set_temperature(0.9f);
      parameters.set_top_p(0.95f);
      break;
    case 1:
      parameters.set_repetition_penalty(1.2f);
      parameters.set_top_k(50);
      break;
    case 2:
      parameters.set_frequency_penalty(0.4f);
      parameters.set_presence_penalty(0.2f);
      parameters.mutable_processed_logprobs()->set_top(2);
      break;
    default:
      parameters.set_temperature(0);
      parameters.set_repetition_penalty(1.3f);
  }
  return parameters;
}

struct Texts::Pending {
  absl::Notification over;
  std::vector<client::RowResult> outcomes;
};

Texts::Texts(client::Client* client, const std::string& name, int count) : client_(*client) {
  for (int i = 0; i < count; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat(name, " ", i);
    options.parameters = TextParameters(i);
    options.vocabulary_size = kVocabulary;
    options.choice_index = static_cast<uint32_t>(i);
    options.prompt = {3, 1, 4, 1, 5};
    auto opened = client_.Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    SORTITION_CHECK(opened.ok());
    Text& text = texts_.emplace_back();
    text.sequence = *std::move(opened);
    text.reference = std::make_unique<ReferenceSequence>(
        options.parameters, text.sequence->seed(), options.choice_index, kVocabulary, kVocabulary, options.prompt);
  }
}

void Texts::Step(const client::StepOptions& options) {
  Begin(options);
  End();
}

void Texts::Begin(const client::StepOptions& options) {
  pending_ = std::make_shared<Pending>();
  client::Batch batch{v1::DTYPE_F16, kVocabulary, {}};
  for (size_t i = 0; i < texts_.size(); ++i) {
    texts_[i].row = MakeRow(v1::DTYPE_F16, kVocabulary, i << 32 | static_cast<uint32_t>(steps_));
    batch.rows.push_back({texts_[i].sequence.get(), texts_[i].row.data()});
  }
  const absl::Status status =
      client_.StepAsync(batch, options, [pending = pending_](std::vector<client::RowResult> outcomes) {
        pending->outcomes = std::move(outcomes);
        pending->over.Notify();
      });
  ASSERT_TRUE(status.ok()) << status;
}

void Texts::End() {
  pending_->over.WaitForNotification();
  for (size_t i = 0; i < texts_.size(); ++i) {
    const client::RowResult& outcome = pending_->outcomes[i];
    const auto* error = std::get_if<client::RowError>(&outcome);
    ASSERT_EQ(error, nullptr) << "row " << i << ": " << client::Describe(*error);
    const v1::DrawResult expected = texts_[i].reference->Step(v1::DTYPE_F16, texts_[i].row.data());
    ASSERT_EQ(Bits(std::get<v1::DrawResult>(outcome)), Bits(expected)) << "row " << i << ", step " << steps_;
  }
  ++steps_;
}

}  // namespace sortition::testing
