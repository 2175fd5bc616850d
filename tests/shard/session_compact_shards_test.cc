// Compact rows in shards: the ranks' statements together give the answer of the whole row in every bit, or ROW_REQUIRED
// for all ranks. A shard that does not state its own part is refused by name.
#include <algorithm>

#include "gmock/gmock.h"
#include "service/text/cost.h"
#include "tests/shard/shards_fixture.h"
#include "tests/support/compact_step.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/scale.h"

namespace sortition::service::session_compact_shards_test {
namespace {

using testing::CompactChoice;
using ::testing::HasSubstr;

constexpr uint32_t kLive = 990;

class SessionCompactShards : public SessionShards {
 protected:
  // Opens the rows' sequences anew, whole and in shards, without logprobs.
  void Open(const char* parameters) {
    ++epoch_;
    for (const char* name : {"a", "b", "whole a", "whole b"}) {
      v1::OpenSequence open = MakeOpen(name, epoch_, kShardedVocabulary);
      open.set_seed(7);
      open.set_live_vocabulary_size(kLive);
      *open.mutable_parameters() = ParametersOf(parameters);
      workers_[0]->MustOpen(open);
    }
  }
  void OpenFiltered() { Open("temperature: 0.8 top_k: 20"); }

  // Builds shard `index` of both rows, with `count` first tokens each.
  v1::StreamRequest CompactStep(uint64_t batch_id, uint32_t index, uint32_t count,
                                const std::vector<std::vector<uint32_t>>& named = {{}, {}}) const {
    const uint32_t end = std::min(kBounds[index + 1], kLive);
    std::vector<std::optional<CompactChoice>> choices;
    for (uint32_t row = 0; row < 2; ++row) {
      choices.push_back(CompactChoice{{}, end - kBounds[index], count, {named[row]}, false, false, kBounds[index]});
    }
    return WithCompactRows(ShardStep(batch_id, index), choices);
  }
  void SendAll(uint64_t batch_id, uint32_t count) {
    for (uint32_t index = 0; index < kShards; ++index) workers_[index]->Send(CompactStep(batch_id, index, count));
  }
  // Returns the refusals that every worker gets; they are the same for all.
  std::vector<v1::Error> Errors(uint64_t batch_id) {
    std::vector<v1::Error> errors;
    for (uint32_t index = 0; index < kShards; ++index) {
      const auto results = workers_[index]->Results(batch_id, 2);
      for (size_t row = 0; row < results.size(); ++row) {
        if (index == 0) errors.push_back(results[row].error());
        EXPECT_EQ(results[row].error().SerializeAsString(), errors[row].SerializeAsString()) << index;
      }
    }
    return errors;
  }
  void ExpectWhole(uint64_t batch_id) {
    const auto whole = workers_[0]->Run(Whole(batch_id + 100'000));
    const std::vector<std::string> draws = Draws(batch_id);
    ASSERT_EQ(draws.size(), 2u);
    for (size_t row = 0; row < 2; ++row) EXPECT_EQ(draws[row], whole.at(row).draw().SerializeAsString());
  }

  uint64_t epoch_ = 1;
};

TEST_F(SessionCompactShards, AnswerIsThatOfWholeRow) {
  uint64_t batch = 0;
  for (const char* parameters : {"top_k: 20", "temperature: 0", "min_p: 0.3 top_p: 0.9",
                                 "top_k: 9 processed_logprobs { top: 3 }", "top_k: 9 kept_set { tokens: true }"}) {
    Open(parameters);
    for (uint64_t round = 0; round < testing::Scaled(10); ++round) {
      logits_ = RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_) +
                RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_);
      SendAll(++batch, 120);
      ASSERT_NO_FATAL_FAILURE(ExpectWhole(batch)) << batch;
    }
  }
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  EXPECT_EQ(engine_.observer().totals().rows_required, 0u);
  EXPECT_GT(engine_.observer().totals().compact_rows, 0u);
}

TEST_F(SessionCompactShards, RequiredTokensDecideTheRow) {
  Open("top_k: 5 logit_bias { token: 3 bias: 2 } logit_bias { token: 335 bias: 2 } logit_bias { token: 700 bias: 2 }");
  SendAll(1, 6);
  const std::vector<v1::Error> errors = Errors(1);
  ASSERT_EQ(errors.size(), 2u);
  std::vector<std::vector<uint32_t>> named;
  for (const v1::Error& error : errors) {
    ASSERT_EQ(error.reason(), v1::ROW_REQUIRED);
    ASSERT_EQ(error.required(0).cause(), v1::RequiredLogits::CAUSE_TOKENS);
    named.emplace_back(error.required(0).tokens().begin(), error.required(0).tokens().end());
  }
  for (uint32_t index = 0; index < kShards; ++index) workers_[index]->Send(CompactStep(2, index, 6, named));
  for (uint32_t index = 0; index < kShards; ++index) {
    for (const v1::RowResult& row : workers_[index]->Results(2, 2)) EXPECT_TRUE(row.has_draw() || row.has_error());
  }
}

TEST_F(SessionCompactShards, ShortListsAreRequiredWhole) {
  OpenFiltered();
  for (uint32_t index = 0; index < kShards; ++index) {
    v1::StreamRequest step = CompactStep(1, index, 2);
    step.mutable_payloads(0)->append(kLive, '\0');  // a shorter message gets a shorter answer
    workers_[index]->Send(step);
  }
  for (const v1::Error& error : Errors(1)) {
    EXPECT_EQ(error.reason(), v1::ROW_REQUIRED);
    EXPECT_EQ(error.required(0).cause(), v1::RequiredLogits::CAUSE_TOKENS);
    EXPECT_GT(error.required(0).tokens_size(), 900);
  }
  SendShards(2, {0, 1, 2});
  ExpectWhole(2);
}

// Every rank gets the tokens, however few bytes it has sent.
TEST_F(SessionCompactShards, ShortestMessageBoundsNamedTokens) {
  OpenFiltered();
  const uint64_t before = engine_->ledger().work();
  uint64_t shortest = kMaxRequiredTokens;
  for (uint32_t index = 0; index < kShards; ++index) {
    v1::StreamRequest step = CompactStep(1, index, 2);
    if (index == 0) step.mutable_payloads(0)->append(kLive, '\0');
    shortest = std::min<uint64_t>(shortest, step.ByteSizeLong());
    workers_[index]->Send(step);
  }
  uint64_t named = 0;
  for (const v1::Error& error : Errors(1)) {
    EXPECT_EQ(error.reason(), v1::ROW_REQUIRED);
    named += static_cast<uint64_t>(error.required(0).tokens_size());
  }
  EXPECT_GT(named, 0u);
  EXPECT_LE(named, 16 * shortest);
  EXPECT_GE(engine_->ledger().work() - before, named * price::kNamedToken);
}

// The shard that completes them is read by a thread that serves other streams.
TEST_F(SessionCompactShards, RowsThatAreWholeStartInPieces) {
  constexpr int kRows = 8;
  constexpr int kPositions = 96;
  OpenFiltered();
  for (int row = 0; row < kRows; ++row) workers_[0]->MustOpen(MakeOpen(absl::StrCat(row), 1, kShardedVocabulary));
  int pieces = 1;
  for (uint32_t index = 0; index < kShards; ++index) {
    v1::StreamRequest step = CompactStep(1, index, kShardedVocabulary);
    const v1::CompactRow compact = step.step().rows(0).compact(0);
    step.mutable_step()->clear_rows();
    for (int i = 0; i < kRows; ++i) {
      v1::StepRow& row = *step.mutable_step()->add_rows();
      row.set_request_id(absl::StrCat(i));
      row.set_step_id(1);
      for (int position = 0; position < kPositions; ++position) {
        row.mutable_score()->add_tokens(7);
        *row.add_compact() = compact;
      }
    }
    if (index + 1 < kShards) {
      workers_[index]->Send(step);
      continue;
    }
    Session& last = workers_[index]->session();
    workers_[index]->Begin(step);
    EXPECT_GE(last.back_off(), absl::Nanoseconds(kPieceWork));
    for (; last.back_off() > absl::ZeroDuration(); ++pieces) last.Continue();
  }
  EXPECT_GT(pieces, 2);
  for (uint32_t index = 0; index < kShards; ++index) {
    const auto results = workers_[index]->Results(1, kRows);
    ASSERT_EQ(results.size(), static_cast<size_t>(kRows));
    for (const v1::RowResult& result : results) EXPECT_TRUE(result.has_score()) << result.ShortDebugString();
  }
}

// Rows that no stream starts any more are answered at the stream's end.
TEST_F(SessionCompactShards, PiecesAreDoneAtTheStreamsEnd) {
  constexpr int kRows = 400;
  OpenFiltered();
  for (int row = 0; row < kRows; ++row) workers_[0]->MustOpen(MakeOpen(absl::StrCat(row), 1, kShardedVocabulary));
  for (uint32_t index = 0; index < kShards; ++index) {
    v1::StreamRequest step = CompactStep(1, index, kShardedVocabulary);
    const v1::StepRow first = step.step().rows(0);
    step.mutable_step()->clear_rows();
    for (int i = 0; i < kRows; ++i) {
      v1::StepRow& row = *step.mutable_step()->add_rows();
      row = first;
      row.set_request_id(absl::StrCat(i));
    }
    if (index + 1 < kShards) {
      workers_[index]->Send(step);
      continue;
    }
    workers_[index]->Begin(step);
    EXPECT_GT(workers_[index]->session().back_off(), absl::ZeroDuration());
    workers_[index].reset();
  }
  EXPECT_EQ(workers_[0]->Results(1, kRows).size(), static_cast<size_t>(kRows));
}

// A rank's shard has no compact form, or travelled whole: all ranks send theirs whole.
TEST_F(SessionCompactShards, BothFormsAreRequiredWhole) {
  OpenFiltered();
  workers_[0]->Send(ShardStep(1, 0));
  workers_[1]->Send(CompactStep(1, 1, 7));
  workers_[2]->Send(CompactStep(1, 2, 50));
  for (const v1::Error& error : Errors(1)) {
    EXPECT_EQ(error.reason(), v1::ROW_REQUIRED);
    EXPECT_EQ(error.required(0).cause(), v1::RequiredLogits::CAUSE_ROW);
  }
  SendShards(2, {0, 1, 2});
  ExpectWhole(2);
}

TEST_F(SessionCompactShards, StatementsOfOthersPartsAreRefused) {
  OpenFiltered();
  const auto expect = [&](uint64_t batch, uint32_t shard, const v1::StreamRequest& wrong, Reason reason,
                          const std::string& field, const std::string& said) {
    for (uint32_t index = 0; index < kShards; ++index) {
      workers_[index]->Send(index == shard ? wrong : CompactStep(batch, index, 50));
    }
    // Shard 0 is read before the others come; then these are answered with it.
    const std::vector<v1::Error> errors = Errors(batch);
    ASSERT_EQ(errors.size(), 2u);
    ExpectError(errors[0], reason, field);
    EXPECT_THAT(errors[0].message(), HasSubstr(said));
  };
  uint64_t batch = 0;
  for (const uint32_t shard : {0u, 1u, 2u}) {
    const std::string name = absl::StrCat("shard ", shard);
    // Another shard's tokens.
    v1::StreamRequest wrong = CompactStep(++batch, shard, 5);
    std::string* const pairs = wrong.mutable_payloads(0);
    const uint32_t outside = kBounds[(shard + 1) % kShards];
    for (const size_t row : {0, 1}) {
      pairs->replace(row * 5 * (sizeof(uint32_t) + kElement), sizeof(outside), reinterpret_cast<const char*>(&outside),
                     sizeof(outside));
    }
    ASSERT_NO_FATAL_FAILURE(expect(batch, shard, wrong, Reason::kOutOfRange, "step.rows[0].compact[0].first", name));
    // Sums.
    wrong = CompactStep(++batch, shard, 5);
    for (v1::StepRow& row : *wrong.mutable_step()->mutable_rows()) row.mutable_compact(0)->set_unit_sum(1);
    ASSERT_NO_FATAL_FAILURE(
        expect(batch, shard, wrong, Reason::kContradiction, "step.rows[0].compact[0].unit_sum", "no sums"));
    // The order of the tokens.
    wrong = CompactStep(++batch, shard, 5);
    std::string* const swapped = wrong.mutable_payloads(0);
    for (const size_t row : {0, 1}) {
      char* const begin = swapped->data() + row * 5 * (sizeof(uint32_t) + kElement);
      std::swap_ranges(begin, begin + 4, begin + 4);
      std::swap_ranges(begin + 20, begin + 24, begin + 24);
    }
    ASSERT_NO_FATAL_FAILURE(
        expect(batch, shard, wrong, Reason::kOutOfRange, "step.rows[0].compact[0].first", "come after"));
  }
  SendAll(++batch, 120);
  ExpectWhole(batch);
}

TEST_F(SessionCompactShards, OverlapAndLossAreRefusedByName) {
  OpenFiltered();
  workers_[0]->Send(CompactStep(1, 0, 50));
  v1::StreamRequest overlapping = CompactStep(1, 1, 5);
  overlapping.mutable_step()->mutable_logits()->mutable_shard()->set_first_token(330);
  ExpectRowsRefused(1, overlapping, Reason::kContradiction, "step.logits.shard.first_token");
  workers_[2]->Send(CompactStep(1, 2, 50));
  Pass(engine_->limits().shard_wait);
  const v1::Error missing = ExpectRowErrors(0, 1, 2, Reason::kDeadlinePassed, "step.logits.shard");
  EXPECT_THAT(missing.message(), HasSubstr("these have not come: 1"));
}

TEST_F(SessionCompactShards, DraftsAreVerifiedAcrossShards) {
  OpenFiltered();
  std::string whole_logits[2];
  for (std::string& row : whole_logits) row = RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_);
  const auto build = [&](const std::string& name, uint64_t batch, uint32_t first, uint32_t end) {
    StepBuilder builder(batch, end - first);
    const auto part = [&](uint32_t row) {
      return whole_logits[row].substr(first * kElement, (end - first) * kElement);
    };
    v1::StepRow& row = builder.AddRow(name, batch, 0, part(0));
    row.mutable_verify_draft()->add_draft_tokens(5);
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
    builder.AddTensorRow(part(1));
    return builder.Build();
  };
  const auto whole = workers_[0]->Run(build("whole a", 900, 0, kShardedVocabulary));
  for (uint32_t index = 0; index < kShards; ++index) {
    const v1::StreamRequest step = AsShard(build("a", 1, kBounds[index], kBounds[index + 1]), index, kBounds[index]);
    const uint32_t end = std::min(kBounds[index + 1], kLive);
    const std::optional<CompactChoice> choices[] = {
        CompactChoice{{}, end - kBounds[index], 120, {}, false, false, kBounds[index]}};
    workers_[index]->Send(WithCompactRows(step, choices));
  }
  for (auto& worker : workers_) {
    const auto results = worker->Results(1, 1);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].verify().SerializeAsString(), whole.at(0).verify().SerializeAsString());
  }
}

}  // namespace
}  // namespace sortition::service::session_compact_shards_test
