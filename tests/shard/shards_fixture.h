// Three workers of one session, each with a stream and a shard of the vocabulary.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/shard/shard_table.h"
#include "tests/support/session.h"

namespace sortition::service {

inline constexpr uint32_t kShardedVocabulary = 1000;
inline constexpr size_t kElement = sizeof(float);
// First tokens of the shards; the last entry is the end. Shards begin and end within groups of the kernels.
inline constexpr std::array<uint32_t, 4> kBounds = {0, 333, 340, kShardedVocabulary};
inline constexpr uint32_t kShards = 3;

class SessionShards : public ::testing::Test {
 protected:
  SessionShards() {
    for (uint32_t i = 0; i < kShards; ++i) workers_.push_back(std::make_unique<StreamWorker>(engine_.get()));
    for (const char* name : {"a", "b"}) {
      v1::OpenSequence open = MakeOpen(name, 1, kShardedVocabulary);
      open.set_live_vocabulary_size(990);
      open.mutable_parameters()->set_top_p(0.9f);
      open.mutable_parameters()->mutable_raw_logprobs()->set_top(5);
      workers_[0]->MustOpen(open);
      open.set_request_id(absl::StrCat("whole ", name));
      workers_[0]->MustOpen(open);
    }
    logits_ = RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_) +
              RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_);
  }

  v1::StreamRequest Whole(uint64_t batch_id) const {
    StepBuilder builder(batch_id, kShardedVocabulary);
    builder.AddRow("whole a", batch_id, 0, logits_.substr(0, kShardedVocabulary * kElement));
    builder.AddRow("whole b", batch_id, 0, logits_.substr(kShardedVocabulary * kElement));
    return builder.Build();
  }
  // Builds shard `index` of both rows, with the tokens from `first` to `end`.
  v1::StreamRequest ShardStep(uint64_t batch_id, uint32_t index, uint32_t first, uint32_t end) const {
    StepBuilder builder(batch_id, end - first);
    for (uint32_t row = 0; row < 2; ++row) {
      builder.AddRow(row == 0 ? "a" : "b", batch_id, 0,
                     logits_.substr((row * kShardedVocabulary + first) * kElement, (end - first) * kElement));
    }
    return AsShard(builder.Build(), index, first);
  }
  static v1::StreamRequest AsShard(v1::StreamRequest request, uint32_t index, uint32_t first) {
    v1::VocabularyShard& shard = *request.mutable_step()->mutable_logits()->mutable_shard();
    shard.set_index(index);
    shard.set_count(kShards);
    shard.set_first_token(first);
    shard.set_total_vocabulary_size(kShardedVocabulary);
    return request;
  }
  v1::StreamRequest ShardStep(uint64_t batch_id, uint32_t index) const {
    return ShardStep(batch_id, index, kBounds[index], kBounds[index + 1]);
  }
  void SendShards(uint64_t batch_id, std::initializer_list<uint32_t> indexes) {
    for (const uint32_t index : indexes) workers_[index]->Send(ShardStep(batch_id, index));
  }
  void Reconnect(uint32_t worker) { workers_[worker] = std::make_unique<StreamWorker>(engine_.get()); }
  // Opens sequences with state and without history anew. Returns their history hash.
  uint64_t OpenStateful(uint64_t epoch, std::initializer_list<const char*> names = {"a", "b"}) {
    uint64_t hash = 0;
    for (const char* name : names) {
      v1::OpenSequence open = MakeOpen(name, epoch, kShardedVocabulary);
      open.mutable_parameters()->set_presence_penalty(0.5f);
      open.mutable_history()->set_prompt_length(0);
      hash = workers_[0]->MustOpen(open).history_hash();
    }
    return hash;
  }
  // The message as a whole.
  void ExpectRefused(uint32_t worker, const v1::StreamRequest& request, Reason reason, const std::string& field) {
    workers_[worker]->Send(request);
    ExpectError(workers_[worker]->StepError(request.step().batch_id()), reason, field);
  }
  // Every row of it; `field` of the first.
  void ExpectRowsRefused(uint32_t worker, const v1::StreamRequest& request, Reason reason, const std::string& field) {
    workers_[worker]->Send(request);
    ExpectRowErrors(worker, request.step().batch_id(), static_cast<size_t>(request.step().rows_size()), reason, field);
  }
  v1::Error ExpectRowErrors(uint32_t worker, uint64_t batch_id, size_t rows, Reason reason, const std::string& field) {
    const std::vector<v1::RowResult> results = workers_[worker]->Results(batch_id, rows);
    EXPECT_EQ(results.size(), rows);
    for (const v1::RowResult& row : results) EXPECT_EQ(row.error().reason(), static_cast<v1::ErrorReason>(reason));
    if (results.empty()) return {};
    ExpectError(results[0].error(), reason, field);
    return results[0].error();
  }
  // Returns the answer that every worker gets; it is the same for all.
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
  // Returns a step of `rows` rows "0", "1" and so on in shard `index` of 256. Each shard has one token.
  static v1::StreamRequest SmallShard(uint64_t batch_id, uint32_t index, uint32_t rows) {
    StepBuilder builder(batch_id, 1);
    for (uint32_t row = 0; row < rows; ++row) builder.AddRow(absl::StrCat(row), 1, 0, std::string(kElement, 0));
    builder.step().mutable_logits()->set_tensor_rows(rows);
    v1::StreamRequest request = AsShard(builder.Build(), index, index);
    v1::VocabularyShard& shard = *request.mutable_step()->mutable_logits()->mutable_shard();
    shard.set_count(256);
    shard.set_total_vocabulary_size(256);
    shard.set_epoch(1);
    return request;
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

}  // namespace sortition::service
