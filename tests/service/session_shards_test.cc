// Rows that come in slices of the vocabulary over several streams: the bits of the whole row, whatever comes first, and
// nobody waits for ever for a slice that does not come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/stream/shard_table.h"
#include "tests/service/expect_error.h"
#include "tests/support/scale.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {
namespace {

using ::testing::HasSubstr;
using testing::OpenOf;
using testing::RandomLogits;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

constexpr uint32_t kVocabulary = 1000;
constexpr size_t kElement = sizeof(float);
// Where slices begin; the last entry is the end. They begin and end within groups of the kernels.
constexpr std::array<uint32_t, 4> kBounds = {0, 333, 340, kVocabulary};
constexpr uint32_t kShards = 3;

class SessionShards : public ::testing::Test {
 protected:
  SessionShards() {
    for (uint32_t i = 0; i < kShards; ++i) workers_.push_back(std::make_unique<StreamWorker>(engine_.get()));
    for (const char* name : {"a", "b"}) {
      v1::OpenSequence open = OpenOf(name, 1, kVocabulary);
      open.set_live_vocabulary_size(990);
      open.mutable_parameters()->set_top_p(0.9f);
      open.mutable_parameters()->mutable_raw_logprobs()->set_top(5);
      workers_[0]->MustOpen(open);
      open.set_request_id(absl::StrCat("whole ", name));
      workers_[0]->MustOpen(open);
    }
    logits_ = RandomLogits(kernels::DType::kF32, kVocabulary, &random_) +
              RandomLogits(kernels::DType::kF32, kVocabulary, &random_);
  }

  v1::StreamRequest Whole(uint64_t batch_id) const {
    StepBuilder builder(batch_id, kVocabulary);
    builder.AddRow("whole a", batch_id, 0, logits_.substr(0, kVocabulary * kElement));
    builder.AddRow("whole b", batch_id, 0, logits_.substr(kVocabulary * kElement));
    return builder.Build();
  }
  // Slice `index` of both rows, of the tokens from `first` to `end`.
  v1::StreamRequest Slice(uint64_t batch_id, uint32_t index, uint32_t first, uint32_t end) const {
    StepBuilder builder(batch_id, end - first);
    for (uint32_t row = 0; row < 2; ++row) {
      builder.AddRow(row == 0 ? "a" : "b", batch_id, 0,
                     logits_.substr((row * kVocabulary + first) * kElement, (end - first) * kElement));
    }
    v1::VocabularyShard& shard = *builder.step().mutable_logits()->mutable_shard();
    shard.set_index(index);
    shard.set_count(kShards);
    shard.set_first_token(first);
    shard.set_total_vocabulary_size(kVocabulary);
    return builder.Build();
  }
  v1::StreamRequest Slice(uint64_t batch_id, uint32_t index) const {
    return Slice(batch_id, index, kBounds[index], kBounds[index + 1]);
  }
  void ExpectRefused(uint32_t worker, const v1::StreamRequest& request, Reason reason, const std::string& field) {
    workers_[worker]->Send(request);
    ExpectError(workers_[worker]->StepError(request.step().batch_id()), reason, field);
  }
  // What every worker is told, which is the same.
  std::vector<std::string> Draws(uint64_t batch_id) {
    std::vector<std::string> first;
    for (auto& worker : workers_) {
      std::vector<std::string> draws;
      for (const v1::RowResult& row : worker->Results(batch_id, 2)) {
        EXPECT_TRUE(row.has_draw()) << row.ShortDebugString();
        draws.push_back(row.draw().SerializeAsString());
      }
      if (first.empty()) first = draws;
      EXPECT_EQ(draws, first);
      EXPECT_TRUE(worker->IsIdle());
    }
    return first;
  }
  void Pass(absl::Duration time) {
    engine_.clock().Advance(time);
    engine_->Sweep();
  }

  std::mt19937_64 random_{3};
  TestEngine engine_ = TestEngine::OnCpu();
  std::vector<std::unique_ptr<StreamWorker>> workers_;
  std::string logits_;
};

TEST_F(SessionShards, InAnyOrderTheyAreTheWholeRow) {
  std::array<uint32_t, kShards> order;
  std::iota(order.begin(), order.end(), 0u);
  uint64_t batch = 0;
  do {
    ++batch;
    for (const uint32_t shard : order) workers_[shard]->Send(Slice(batch, shard));
    const std::vector<std::string> draws = Draws(batch);
    const auto whole = workers_[0]->Run(Whole(batch + 1000));
    ASSERT_EQ(draws.size(), 2u);
    EXPECT_EQ(draws[0], whole.at(0).draw().SerializeAsString());
    EXPECT_EQ(draws[1], whole.at(1).draw().SerializeAsString());
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(batch, 6u);
  EXPECT_EQ(engine_->shards().waiting(), 0u);
}

// Which index has which tokens is the workers' affair, and each may have its rows in another order.
TEST_F(SessionShards, SlicesNeedNotBeInTheOrderOfTheirTokens) {
  workers_[0]->Send(Slice(1, 0, 340, kVocabulary));
  workers_[1]->Send(Slice(1, 1, 0, 333));
  v1::StreamRequest last = Slice(1, 2, 333, 340);
  const size_t row_bytes = 7 * kElement;
  std::string* const payload = last.mutable_payloads(0);
  *payload = payload->substr(row_bytes) + payload->substr(0, row_bytes);
  last.mutable_step()->mutable_rows(0)->set_tensor_row(1);
  last.mutable_step()->mutable_rows(1)->set_tensor_row(0);
  workers_[2]->Send(last);
  const auto whole = workers_[0]->Run(Whole(1000));
  EXPECT_EQ(Draws(1)[1], whole.at(1).draw().SerializeAsString());
}

TEST_F(SessionShards, WhatDoesNotFitIsRefusedAndTheOthersGoOn) {
  workers_[0]->Send(Slice(1, 0));
  ExpectRefused(1, Slice(1, 0), Reason::kContradiction, "step.logits.shard.index");
  ExpectRefused(1, Slice(1, 1, 332, 340), Reason::kContradiction, "step.logits.shard.first_token");
  ExpectRefused(1, Slice(1, 1, 100, 101), Reason::kContradiction, "step.logits.shard.first_token");
  v1::StreamRequest other = Slice(1, 1);
  other.mutable_step()->mutable_logits()->mutable_shard()->set_count(4);
  ExpectRefused(1, other, Reason::kContradiction, "step.logits.shard.count");
  other = Slice(1, 1);
  other.mutable_step()->mutable_logits()->mutable_shard()->set_total_vocabulary_size(999);
  ExpectRefused(1, other, Reason::kContradiction, "step.logits.shard.total_vocabulary_size");
  other = Slice(1, 1);
  other.mutable_step()->mutable_rows(1)->set_request_id("c");
  ExpectRefused(1, other, Reason::kContradiction, "step.rows");
  other = Slice(1, 1);
  other.mutable_step()->mutable_masks()->set_rows(1);
  ExpectRefused(1, other, Reason::kContradiction, "step.masks");
  workers_[1]->Send(Slice(1, 1));
  workers_[2]->Send(Slice(1, 2));
  EXPECT_EQ(Draws(1).size(), 2u);
}

TEST_F(SessionShards, ShapesOutOfRangeAreRefused) {
  const auto refuse = [&](const std::string& field, void (*change)(v1::VocabularyShard*)) {
    v1::StreamRequest request = Slice(1, 1);
    change(request.mutable_step()->mutable_logits()->mutable_shard());
    ExpectRefused(1, request, Reason::kOutOfRange, "step.logits.shard." + field);
  };
  refuse("count", [](auto* shard) { shard->set_count(1); });
  refuse("count", [](auto* shard) { shard->set_count(kMaxShards + 1); });
  refuse("index", [](auto* shard) { shard->set_index(3); });
  refuse("total_vocabulary_size", [](auto* shard) { shard->set_total_vocabulary_size(0); });
  refuse("total_vocabulary_size", [](auto* shard) { shard->set_total_vocabulary_size(1u << 20); });
  refuse("first_token", [](auto* shard) { shard->set_first_token(kVocabulary); });
  refuse("first_token", [](auto* shard) { shard->set_first_token(kVocabulary - 6); });
}

TEST_F(SessionShards, AGapIsSaidToEverybody) {
  workers_[0]->Send(Slice(1, 0));
  workers_[1]->Send(Slice(1, 1, 333, 339));
  workers_[2]->Send(Slice(1, 2));
  for (auto& worker : workers_) {
    ExpectError(worker->StepError(1), Reason::kSizeMismatch, "step.logits.shard.total_vocabulary_size");
    EXPECT_TRUE(worker->IsIdle());
  }
}

TEST_F(SessionShards, ARowThatASliceDoesNotHaveIsSaidToEverybody) {
  workers_[0]->Send(Slice(1, 0));
  v1::StreamRequest other = Slice(1, 1);
  other.mutable_step()->mutable_rows(1)->set_tensor_row(2);
  workers_[1]->Send(other);
  workers_[2]->Send(Slice(1, 2));
  for (auto& worker : workers_) ExpectError(worker->StepError(1), Reason::kOutOfRange, "step.rows[1].tensor_row");
}

// A row that verifies drafts has several tensor rows, in each slice.
TEST_F(SessionShards, DraftsAreVerifiedOverSlices) {
  const auto verify = [&](v1::StreamRequest request) {
    v1::Step& step = *request.mutable_step();
    step.mutable_logits()->set_tensor_rows(2);
    step.mutable_rows()->RemoveLast();
    step.mutable_rows(0)->mutable_verify_chain()->add_draft_tokens(5);
    step.mutable_rows(0)->mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
    return request;
  };
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(verify(Slice(1, i)));
  const auto whole = workers_[0]->Run(verify(Whole(1000)));
  for (auto& worker : workers_) {
    EXPECT_EQ(worker->Results(1, 1).at(0).verify().SerializeAsString(), whole.at(0).verify().SerializeAsString());
  }
  EXPECT_GT(whole.at(0).verify().tokens_size(), 0);
  v1::StreamRequest outside = verify(Slice(2, 1));
  outside.mutable_step()->mutable_rows(0)->set_tensor_row(1);
  workers_[0]->Send(verify(Slice(2, 0)));
  workers_[1]->Send(outside);
  workers_[2]->Send(verify(Slice(2, 2)));
  for (auto& worker : workers_) ExpectError(worker->StepError(2), Reason::kOutOfRange, "step.rows[0].tensor_row");
}

// The first row takes three tensor rows, position by position as its sampler keeps a state, the second takes the
// fourth.
TEST_F(SessionShards, RowsBeginBehindTheTensorRowsOfThoseBefore) {
  for (const char* name : {"drafts", "whole drafts"}) {
    v1::OpenSequence open = OpenOf(name, 1, kVocabulary);
    open.set_live_vocabulary_size(990);
    open.mutable_parameters()->mutable_processed_logprobs();
    open.mutable_parameters()->mutable_mirostat()->set_version(2);
    workers_[0]->MustOpen(open);
  }
  logits_ += RandomLogits(kernels::DType::kF32, kVocabulary, &random_) +
             RandomLogits(kernels::DType::kF32, kVocabulary, &random_);
  std::vector<uint32_t> drafts = {5, 6};
  const auto step = [&](uint64_t batch_id, const std::string& prefix, uint32_t first, uint32_t end) {
    const auto part = [&](uint32_t row) {
      return logits_.substr((row * kVocabulary + first) * kElement, (end - first) * kElement);
    };
    StepBuilder builder(batch_id, end - first);
    v1::StepRow& row = builder.AddRow(prefix + "drafts", batch_id, 0, part(0));
    row.mutable_verify_chain()->set_mode(v1::VERIFY_MODE_COUPLED);
    row.mutable_verify_chain()->mutable_draft_tokens()->Assign(drafts.begin(), drafts.end());
    for (const uint32_t tensor_row : {1u, 2u}) builder.AddTensorRow(part(tensor_row));
    builder.AddRow(prefix + "a", batch_id, 0, part(3));
    return builder;
  };
  const auto slice = [&](uint64_t batch_id, uint32_t index) {
    StepBuilder builder = step(batch_id, "", kBounds[index], kBounds[index + 1]);
    v1::VocabularyShard& shard = *builder.step().mutable_logits()->mutable_shard();
    shard.set_index(index);
    shard.set_count(kShards);
    shard.set_first_token(kBounds[index]);
    shard.set_total_vocabulary_size(kVocabulary);
    return builder.Build();
  };
  for (uint64_t batch = 1; batch <= 3; ++batch) {
    std::vector<v1::RowResult> whole = workers_[0]->Run(step(batch + 100, "whole ", 0, kVocabulary).Build());
    ASSERT_TRUE(whole.at(0).has_verify() && whole.at(1).has_draw());
    for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(slice(batch, i));
    for (auto& worker : workers_) {
      std::vector<v1::RowResult> results = worker->Results(batch, 2);
      results.at(0).mutable_verify()->clear_checkpoint();
      EXPECT_EQ(results.at(0).verify().tokens_size(), static_cast<int>(batch));
      EXPECT_EQ(results.at(1).draw().SerializeAsString(), whole.at(1).draw().SerializeAsString());
      whole.at(0).mutable_verify()->clear_checkpoint();
      EXPECT_EQ(results.at(0).verify().SerializeAsString(), whole.at(0).verify().SerializeAsString());
    }
    // One more of them is right the next time.
    if (batch < 3) drafts[batch - 1] = whole.at(0).verify().tokens(static_cast<int>(batch) - 1);
  }
  v1::StreamRequest forgets = slice(4, 1);
  forgets.mutable_step()->mutable_rows(0)->mutable_verify_chain()->mutable_draft_tokens()->RemoveLast();
  forgets.mutable_step()->mutable_logits()->set_tensor_rows(4);
  workers_[0]->Send(slice(4, 0));
  ExpectRefused(1, forgets, Reason::kContradiction, "step.rows");
}

TEST_F(SessionShards, AMissingSliceTimesOutByName) {
  workers_[0]->Send(Slice(1, 0));
  workers_[1]->Send(Slice(1, 1));
  Pass(engine_->limits().shard_wait - absl::Milliseconds(1));
  EXPECT_EQ(engine_->shards().waiting(), 1u);
  Pass(absl::Milliseconds(1));
  for (const uint32_t worker : {0, 1}) {
    const v1::Error error = workers_[worker]->StepError(1);
    ExpectError(error, Reason::kDeadlinePassed, "step.logits.shard");
    EXPECT_THAT(error.message(), HasSubstr("not come: 2"));
    EXPECT_TRUE(workers_[worker]->IsIdle());
  }
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(Slice(1, i));
  EXPECT_EQ(Draws(1).size(), 2u) << "the same step again";
}

TEST_F(SessionShards, TheStepsOwnTimeoutHoldsIfItIsShorter) {
  v1::StreamRequest request = Slice(1, 1);
  request.mutable_step()->mutable_timeout()->set_nanos(1'000'000);
  workers_[1]->Send(request);
  Pass(absl::Milliseconds(1));
  ExpectError(workers_[1]->StepError(1), Reason::kDeadlinePassed, "step.logits.shard");
}

TEST_F(SessionShards, StreamsThatEndTakeTheirSlicesAlong) {
  workers_[0]->Send(Slice(1, 0));
  workers_[1]->Send(Slice(1, 1));
  workers_[1]->Disconnect();
  workers_[1] = std::make_unique<StreamWorker>(engine_.get());
  workers_[2]->Send(Slice(1, 2));
  workers_[1]->Send(Slice(1, 1));
  EXPECT_EQ(Draws(1).size(), 2u);
  workers_[2]->Send(Slice(2, 2));
  workers_[2]->Disconnect();
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  workers_[2] = std::make_unique<StreamWorker>(engine_.get());
}

TEST_F(SessionShards, WorkersOfOtherSessionsDoNotMeet) {
  StreamWorker stranger(engine_.get(), {.worker_session = "another"});
  workers_[0]->Send(Slice(1, 0));
  workers_[1]->Send(Slice(1, 1));
  stranger.Send(Slice(1, 2));
  EXPECT_EQ(engine_->shards().waiting(), 2u);
  workers_[2]->Send(Slice(1, 2));
  EXPECT_EQ(Draws(1).size(), 2u);
}

// A sequence with state: the answer is remembered, and a step that waits for its slices is in flight.
TEST_F(SessionShards, StatefulSequencesKeepTheirRules) {
  v1::OpenSequence open = OpenOf("a", 2, kVocabulary);
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_history()->set_prompt_length(0);
  for (const char* name : {"a", "b"}) {
    open.set_request_id(name);
    workers_[0]->MustOpen(open);
  }
  const uint64_t hash = workers_[0]->MustOpen(open).history_hash();
  const auto slice = [&](uint64_t batch, uint64_t step_id, uint32_t index) {
    v1::StreamRequest request = Slice(batch, index);
    for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) {
      row.set_step_id(step_id);
      row.set_history_hash(hash);
    }
    return request;
  };
  workers_[0]->Send(slice(1, 1, 0));
  Pass(engine_->limits().shard_wait);
  ExpectError(workers_[0]->StepError(1), Reason::kDeadlinePassed, "step.logits.shard");
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(slice(2, 1, i));
  const std::vector<std::string> draws = Draws(2);
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(slice(3, 1, i));
  EXPECT_EQ(Draws(3), draws) << "the same answer again";
}

// Slices of many steps from as many threads as there are streams.
TEST_F(SessionShards, StreamsOfSeveralThreadsMeet) {
  const uint64_t steps = testing::Scaled(200);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kShards; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t batch = 1; batch <= steps; ++batch) {
        workers_[i]->Send(Slice(batch, i));
        for (const v1::RowResult& row : workers_[i]->Results(batch, 2)) EXPECT_TRUE(row.has_draw());
        workers_[i]->LetLeave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine_->shards().waiting(), 0u);
}

}  // namespace
}  // namespace sortition::service
