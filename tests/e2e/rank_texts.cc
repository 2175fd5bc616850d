// Steps of ranks, and the comparison of their results.
#include "tests/e2e/rank_texts.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"
#include "tests/e2e/texts.h"

namespace sortition::testing {
RankTexts::RankTexts(int steps) : steps_(steps), mask_((kVocabulary + 31) / 32, 0x5555aaaau) {
  for (int text = 0; text < 4; ++text) {
    client::SequenceOptions& options = options_.emplace_back();
    options.request_id = absl::StrCat("text ", text);
    options.vocabulary_size = kVocabulary;
    options.seed = static_cast<uint64_t>(text) + 40;
    options.prompt = {3, 1, 4, 1, 5};
    options.parameters = TextParameters(text);
    options.parameters.mutable_raw_logprobs()->set_top(3);
    ReferenceSequence reference(options.parameters, *options.seed, 0, kVocabulary, kVocabulary, options.prompt);
    rows_.emplace_back();
    expected_.emplace_back();
    for (int step = 0; step < steps; ++step) {
      const uint64_t key = static_cast<uint64_t>(text) << 32 | static_cast<uint32_t>(step);
      rows_.back().push_back(MakeRow(v1::DTYPE_F16, kVocabulary, key));
      const uint32_t* const allowed = mask(static_cast<size_t>(text), step);
      expected_.back().push_back(Bits(reference.Step(v1::DTYPE_F16, rows_.back().back().data(), 0, allowed)));
    }
    tokens_.emplace_back(reference.tokens().begin() + kPrompt, reference.tokens().end());
  }
}

std::vector<uint32_t> RankTexts::tokens(size_t text, int steps) const {
  return {tokens_[text].begin(), tokens_[text].begin() + steps};
}

client::VocabularyShard ShardOf(uint32_t index, uint32_t count) {
  const auto begin = [&](uint32_t rank) {
    return rank == count ? RankTexts::kVocabulary
                         : rank * (RankTexts::kVocabulary / count) + (rank == 0 ? 0 : 7 * rank);
  };
  return {index, count, begin(index), begin(index + 1) - begin(index), RankTexts::kVocabulary};
}

Rank::Rank(const RankTexts* texts, client::ClientOptions options, int done)
    : texts_(*texts), shard_(*options.shard), client_(Connect(std::move(options))), done_(done) {
  for (size_t text = 0; text < texts_.texts(); ++text) {
    auto opened = client_->Open(texts_.options(text));
    EXPECT_TRUE(opened.ok()) << opened.status();
    SORTITION_CHECK(opened.ok());
    const absl::Status status = (*opened)->Append(texts_.tokens(text, done));
    EXPECT_TRUE(status.ok()) << status;
    sequences_.push_back(*std::move(opened));
  }
}

std::vector<client::RowResult> Rank::TryStep(const client::StepOptions& options) {
  client::Batch batch{v1::DTYPE_F16, shard_.tokens, {}};
  for (size_t text = 0; text < texts_.texts(); ++text) {
    client::Row& row = batch.rows.emplace_back();
    row.sequence = sequences_[text].get();
    row.logits = texts_.row(text, done_).data() + size_t{shard_.first_token} * 2;
    row.allowed_bits = texts_.mask(text, done_);
  }
  auto outcomes = client_->Step(batch, options);
  EXPECT_TRUE(outcomes.ok()) << outcomes.status();
  return outcomes.ok() ? *std::move(outcomes) : std::vector<client::RowResult>();
}

void Rank::Step(const client::StepOptions& options) {
  const std::vector<client::RowResult> outcomes = TryStep(options);
  ASSERT_EQ(outcomes.size(), texts_.texts());
  for (size_t text = 0; text < texts_.texts(); ++text) {
    const auto* error = std::get_if<client::RowError>(&outcomes[text]);
    ASSERT_EQ(error, nullptr) << "rank " << shard_.index << ", text " << text << ", step " << done_ << ": "
                              << client::Describe(*error);
    ASSERT_EQ(Bits(std::get<v1::DrawResult>(outcomes[text])), texts_.expected(text, done_))
        << "rank " << shard_.index << ", text " << text << ", step " << done_;
    ASSERT_EQ(sequences_[text]->position(), RankTexts::kPrompt + static_cast<uint32_t>(done_) + 1);
  }
  ++done_;
}

void OnRanks(uint32_t count, const std::function<void(uint32_t)>& run, const std::function<void()>& meanwhile) {
  std::vector<std::thread> threads;
  for (uint32_t index = 0; index < count; ++index) threads.emplace_back(run, index);
  meanwhile();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sortition::testing
