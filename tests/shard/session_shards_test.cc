// Rows that come in shards of the vocabulary over several streams: the bits of the whole row in any order of arrival.
#include <array>
#include <numeric>
#include <thread>

#include "tests/shard/shards_fixture.h"
#include "tests/support/scale.h"

namespace sortition::service::session_shards_test {
namespace {

TEST_F(SessionShards, AnyOrderEqualsWholeRow) {
  std::array<uint32_t, kShards> order;
  std::iota(order.begin(), order.end(), 0u);
  uint64_t batch = 0;
  do {
    ++batch;
    for (const uint32_t shard : order) workers_[shard]->Send(ShardStep(batch, shard));
    const std::vector<std::string> draws = Draws(batch);
    const auto whole = workers_[0]->Run(Whole(batch + 1000));
    ASSERT_EQ(draws.size(), 2u);
    EXPECT_EQ(draws[0], whole.at(0).draw().SerializeAsString());
    EXPECT_EQ(draws[1], whole.at(1).draw().SerializeAsString());
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(batch, 6u);
  EXPECT_EQ(engine_->shards().waiting(), 0u);
}

// Workers choose which index has which tokens, and each may have its rows in another order.
TEST_F(SessionShards, ShardsNeedNotBeInTokenOrder) {
  workers_[0]->Send(ShardStep(1, 0, 340, kShardedVocabulary));
  workers_[1]->Send(ShardStep(1, 1, 0, 333));
  v1::StreamRequest last = ShardStep(1, 2, 333, 340);
  const size_t row_bytes = 7 * kElement;
  std::string* const payload = last.mutable_payloads(0);
  *payload = payload->substr(row_bytes) + payload->substr(0, row_bytes);
  last.mutable_step()->mutable_rows(0)->set_tensor_row(1);
  last.mutable_step()->mutable_rows(1)->set_tensor_row(0);
  workers_[2]->Send(last);
  const auto whole = workers_[0]->Run(Whole(1000));
  EXPECT_EQ(Draws(1)[1], whole.at(1).draw().SerializeAsString());
}

TEST_F(SessionShards, MismatchedShardIsRefusedOthersContinue) {
  SendShards(1, {0, 2});
  ExpectRowsRefused(1, ShardStep(1, 2), Reason::kContradiction, "step.logits.shard.index");
  ExpectRowsRefused(1, ShardStep(1, 1, 332, 340), Reason::kContradiction, "step.logits.shard.first_token");
  ExpectRowsRefused(1, ShardStep(1, 1, 100, 101), Reason::kContradiction, "step.logits.shard.first_token");
  v1::StreamRequest other = ShardStep(1, 1);
  other.mutable_step()->mutable_logits()->mutable_shard()->set_count(4);
  ExpectRowsRefused(1, other, Reason::kContradiction, "step.logits.shard.count");
  other = ShardStep(1, 1);
  other.mutable_step()->mutable_logits()->mutable_shard()->set_total_vocabulary_size(999);
  ExpectRowsRefused(1, other, Reason::kContradiction, "step.logits.shard.total_vocabulary_size");
  other = ShardStep(1, 1);
  other.mutable_step()->mutable_masks()->set_rows(1);
  ExpectRefused(1, other, Reason::kContradiction, "step.masks");
  workers_[1]->Send(ShardStep(1, 1));
  EXPECT_EQ(Draws(1).size(), 2u);
}

// A row fails alone: its neighbour has all its shards.
TEST_F(SessionShards, MismatchedRowIsRefusedAlone) {
  workers_[0]->Send(ShardStep(1, 0));
  v1::StreamRequest other = ShardStep(1, 1);
  other.mutable_step()->mutable_rows(1)->set_position(3);
  workers_[1]->Send(other);
  workers_[2]->Send(ShardStep(1, 2));
  std::vector<v1::RowResult> results = workers_[1]->Results(1, 2);
  EXPECT_TRUE(results[0].has_draw());
  ExpectError(results[1].error(), Reason::kContradiction, "step.rows[1].position");
  other = ShardStep(2, 1);
  other.mutable_step()->mutable_rows(1)->set_request_id("a");
  ExpectRowsRefused(1, other, Reason::kDuplicateRow, "step.rows[0].request_id");
  other = ShardStep(3, 1);
  other.mutable_step()->mutable_rows(0)->clear_request_id();
  workers_[1]->Send(other);
  Pass(engine_->limits().shard_wait);
  ExpectError(workers_[1]->Results(3, 2)[0].error(), Reason::kMissingField, "step.rows[0].request_id");
  ExpectError(workers_[0]->Results(1, 2)[1].error(), Reason::kDeadlinePassed, "step.logits.shard");
}

// Masks, checkpoints, drafters' rows and rewrites are read from shard 0.
TEST_F(SessionShards, OtherShardsBringNothingOfShard0) {
  const std::pair<std::string, void (*)(v1::StepRow*)> brings[] = {
      {"truncate_to", [](auto* row) { row->set_truncate_to(0); }},
      {"append_tokens", [](auto* row) { row->add_append_tokens(1); }},
      {"mask", [](auto* row) { row->mutable_mask()->mutable_allowed_tokens()->add_tokens(1); }},
      {"mask", [](auto* row) { row->mutable_mask()->set_uploaded_mask_id(1); }},
      {"checkpoint", [](auto* row) { row->set_checkpoint("state"); }},
      {"verify_draft.draft_row", [](auto* row) { row->mutable_verify_draft()->set_draft_row(0); }},
      {"verify_draft.masks", [](auto* row) { row->mutable_verify_draft()->add_masks()->set_uploaded_mask_id(1); }},
      {"verify_tree.draft_row", [](auto* row) { row->mutable_verify_tree()->set_draft_row(0); }},
      {"verify_tree.masks", [](auto* row) { row->mutable_verify_tree()->add_masks()->set_uploaded_mask_id(1); }},
  };
  uint64_t batch = 0;
  for (const auto& [field, bring] : brings) {
    ++batch;
    v1::StreamRequest request = ShardStep(batch, 1);
    request.mutable_step()->mutable_logits()->set_tensor_rows(2);
    bring(request.mutable_step()->mutable_rows(1));
    workers_[0]->Send(ShardStep(batch, 0));
    workers_[1]->Send(request);
    workers_[2]->Send(ShardStep(batch, 2));
    const std::vector<v1::RowResult> results = workers_[1]->Results(batch, 2);
    const auto refused = std::ranges::find_if(results, [](const auto& row) { return row.has_error(); });
    ASSERT_NE(refused, results.end()) << field;
    EXPECT_EQ(refused->row(), 1u) << "a row fails alone";
    ExpectError(refused->error(), Reason::kContradiction, "step.rows[1]." + field);
    workers_[1]->Send(ShardStep(batch + 1000, 1));  // of a later step
  }
}

TEST_F(SessionShards, OtherShardsRepeatWhatTheySet) {
  const std::pair<std::string, void (*)(v1::Step*)> sets[] = {
      {"priority", [](auto* step) { step->set_priority(3); }},
      {"rows[0].draw_salt", [](auto* step) { step->mutable_rows(0)->set_draw_salt(1); }},
      {"rows[0].history_hash", [](auto* step) { step->mutable_rows(0)->set_history_hash(1); }},
      {"rows[0]", [](auto* step) { step->mutable_rows(0)->mutable_score()->add_tokens(1); }},
  };
  SendShards(1, {0, 1});
  for (const auto& [field, set] : sets) {
    v1::StreamRequest request = ShardStep(1, 2);
    set(request.mutable_step());
    request.mutable_step()->mutable_rows()->RemoveLast();
    request.mutable_step()->mutable_logits()->set_tensor_rows(2);
    ExpectRowsRefused(2, request, Reason::kContradiction, "step." + field);
  }
  workers_[2]->Send(ShardStep(1, 2));
  EXPECT_EQ(Draws(1).size(), 2u);
}

// A hash that shard 0 has not got, or another, concerns its row alone; the right one may be left out.
TEST_F(SessionShards, HashesOfOtherShardsAreCompared) {
  const uint64_t hash = OpenStateful(2, {"b"});
  const auto with = [&](uint32_t index, std::optional<uint64_t> said) {
    v1::StreamRequest request = ShardStep(1, index);
    if (said) request.mutable_step()->mutable_rows(1)->set_history_hash(*said);
    return request;
  };
  workers_[0]->Send(with(0, hash));
  workers_[1]->Send(with(1, std::nullopt));
  workers_[2]->Send(with(2, hash + 1));
  const std::vector<v1::RowResult> results = workers_[2]->Results(1, 2);
  const auto refused = std::ranges::find_if(results, [](const auto& row) { return row.has_error(); });
  ASSERT_NE(refused, results.end());
  ExpectError(refused->error(), Reason::kContradiction, "step.rows[1].history_hash");
  v1::StreamRequest again = with(2, hash);
  again.mutable_step()->set_batch_id(2);
  workers_[2]->Send(again);
  EXPECT_TRUE(workers_[0]->Results(1, 2).at(1).has_draw());
}

// Ranks cut their messages as they like: rows meet by their names.
TEST_F(SessionShards, MessagesMayHoldDifferentRows) {
  const auto only = [](v1::StreamRequest request, int row, uint64_t batch) {
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(batch);
    const size_t bytes = request.payloads(0).size() / 2;
    *request.mutable_payloads(0) = request.payloads(0).substr(static_cast<size_t>(row) * bytes, bytes);
    step.mutable_rows()->SwapElements(0, row);
    step.mutable_rows()->RemoveLast();
    return request;
  };
  workers_[1]->Send(only(ShardStep(1, 1), 1, 71));
  workers_[0]->Send(ShardStep(1, 0));
  workers_[2]->Send(only(ShardStep(1, 2), 0, 9));
  workers_[1]->Send(only(ShardStep(1, 1), 0, 72));
  workers_[2]->Send(only(ShardStep(1, 2), 1, 8));
  const auto whole = workers_[0]->Run(Whole(1000));
  const auto expect = [&](uint32_t worker, uint64_t batch, size_t of_whole) {
    EXPECT_EQ(workers_[worker]->Results(batch, 1).at(0).draw().SerializeAsString(),
              whole.at(of_whole).draw().SerializeAsString());
  };
  const auto first = workers_[0]->Results(1, 2);
  for (const size_t row : {0, 1}) {
    EXPECT_EQ(first.at(row).draw().SerializeAsString(), whole.at(row).draw().SerializeAsString());
  }
  expect(1, 71, 1);
  expect(1, 72, 0);
  expect(2, 9, 0);
  expect(2, 8, 1);
  for (auto& worker : workers_) EXPECT_TRUE(worker->IsIdle());
}

TEST_F(SessionShards, ShapesOutOfRangeAreRefused) {
  const auto refuse = [&](const std::string& field, void (*change)(v1::VocabularyShard*)) {
    v1::StreamRequest request = ShardStep(1, 1);
    change(request.mutable_step()->mutable_logits()->mutable_shard());
    ExpectRefused(1, request, Reason::kOutOfRange, "step.logits.shard." + field);
  };
  refuse("count", [](auto* shard) { shard->set_count(1); });
  refuse("count", [](auto* shard) { shard->set_count(kMaxShards + 1); });
  refuse("index", [](auto* shard) { shard->set_index(3); });
  refuse("total_vocabulary_size", [](auto* shard) { shard->set_total_vocabulary_size(0); });
  refuse("total_vocabulary_size", [](auto* shard) { shard->set_total_vocabulary_size(1u << 20); });
  refuse("first_token", [](auto* shard) { shard->set_first_token(kShardedVocabulary); });
  refuse("first_token", [](auto* shard) { shard->set_first_token(kShardedVocabulary - 6); });
}

TEST_F(SessionShards, GapIsReportedToAllRanks) {
  workers_[0]->Send(ShardStep(1, 0));
  workers_[1]->Send(ShardStep(1, 1, 333, 339));
  workers_[2]->Send(ShardStep(1, 2));
  for (auto& worker : workers_) {
    for (const v1::RowResult& row : worker->Results(1, 2)) {
      ExpectError(row.error(), Reason::kSizeMismatch, "step.logits.shard.total_vocabulary_size");
    }
    EXPECT_TRUE(worker->IsIdle());
  }
}

TEST_F(SessionShards, MissingRowIsReportedToAllRanks) {
  workers_[0]->Send(ShardStep(1, 0));
  v1::StreamRequest other = ShardStep(1, 1);
  other.mutable_step()->mutable_rows(1)->set_tensor_row(2);
  workers_[1]->Send(other);
  workers_[2]->Send(ShardStep(1, 2));
  for (auto& worker : workers_) {
    const std::vector<v1::RowResult> results = worker->Results(1, 2);
    EXPECT_TRUE(results[0].has_draw());
    ExpectError(results[1].error(), Reason::kOutOfRange, "step.rows[1].tensor_row");
  }
}

// A row that verifies drafts has several tensor rows in each shard.
TEST_F(SessionShards, DraftsAreVerifiedAcrossShards) {
  const auto verify = [&](v1::StreamRequest request) {
    v1::Step& step = *request.mutable_step();
    step.mutable_logits()->set_tensor_rows(2);
    step.mutable_rows()->RemoveLast();
    step.mutable_rows(0)->mutable_verify_draft()->add_draft_tokens(5);
    step.mutable_rows(0)->mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
    return request;
  };
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(verify(ShardStep(1, i)));
  const auto whole = workers_[0]->Run(verify(Whole(1000)));
  for (auto& worker : workers_) {
    EXPECT_EQ(worker->Results(1, 1).at(0).verify().SerializeAsString(), whole.at(0).verify().SerializeAsString());
  }
  EXPECT_GT(whole.at(0).verify().positions_size(), 0);
  v1::StreamRequest outside = verify(ShardStep(2, 1));
  outside.mutable_step()->mutable_rows(0)->set_tensor_row(1);
  workers_[0]->Send(verify(ShardStep(2, 0)));
  workers_[1]->Send(outside);
  workers_[2]->Send(verify(ShardStep(2, 2)));
  for (uint32_t i = 0; i < kShards; ++i) ExpectRowErrors(i, 2, 1, Reason::kOutOfRange, "step.rows[0].tensor_row");
}

// The first row takes three tensor rows, position by position as its sampler keeps a state, the second takes the
// fourth.
TEST_F(SessionShards, RowsFollowEarlierTensorRows) {
  for (const char* name : {"drafts", "whole drafts"}) {
    v1::OpenSequence open = MakeOpen(name, 1, kShardedVocabulary);
    open.set_live_vocabulary_size(990);
    open.mutable_parameters()->mutable_processed_logprobs();
    open.mutable_parameters()->mutable_mirostat()->set_version(2);
    workers_[0]->MustOpen(open);
  }
  logits_ += RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_) +
             RandomLogits(kernels::DType::kF32, kShardedVocabulary, &random_);
  std::vector<uint32_t> drafts = {5, 6};
  const auto step = [&](uint64_t batch_id, const std::string& prefix, uint32_t first, uint32_t end) {
    const auto part = [&](uint32_t row) {
      return logits_.substr((row * kShardedVocabulary + first) * kElement, (end - first) * kElement);
    };
    StepBuilder builder(batch_id, end - first);
    v1::StepRow& row = builder.AddRow(prefix + "drafts", batch_id, 0, part(0));
    row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
    row.mutable_verify_draft()->mutable_draft_tokens()->Assign(drafts.begin(), drafts.end());
    for (const uint32_t tensor_row : {1u, 2u}) builder.AddTensorRow(part(tensor_row));
    builder.AddRow(prefix + "a", batch_id, 0, part(3));
    return builder;
  };
  const auto shard_step = [&](uint64_t batch_id, uint32_t index) {
    return AsShard(step(batch_id, "", kBounds[index], kBounds[index + 1]).Build(), index, kBounds[index]);
  };
  for (uint64_t batch = 1; batch <= 3; ++batch) {
    std::vector<v1::RowResult> whole = workers_[0]->Run(step(batch + 100, "whole ", 0, kShardedVocabulary).Build());
    ASSERT_TRUE(whole.at(0).has_verify() && whole.at(1).has_draw());
    for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(shard_step(batch, i));
    for (auto& worker : workers_) {
      std::vector<v1::RowResult> results = worker->Results(batch, 2);
      results.at(0).mutable_verify()->clear_checkpoint();
      EXPECT_EQ(results.at(0).verify().positions_size(), static_cast<int>(batch));
      EXPECT_EQ(results.at(1).draw().SerializeAsString(), whole.at(1).draw().SerializeAsString());
      whole.at(0).mutable_verify()->clear_checkpoint();
      EXPECT_EQ(results.at(0).verify().SerializeAsString(), whole.at(0).verify().SerializeAsString());
    }
    // One more of them is right in each batch.
    if (batch < 3) drafts[batch - 1] = whole.at(0).verify().positions(static_cast<int>(batch) - 1).token();
  }
  v1::StreamRequest forgets = shard_step(4, 1);
  forgets.mutable_step()->mutable_rows(0)->mutable_verify_draft()->mutable_draft_tokens()->RemoveLast();
  forgets.mutable_step()->mutable_logits()->set_tensor_rows(4);
  workers_[0]->Send(shard_step(4, 0));
  workers_[1]->Send(forgets);
  Pass(engine_->limits().shard_wait);
  ExpectError(workers_[1]->Results(4, 2)[0].error(), Reason::kContradiction, "step.rows[0]");
}

TEST_F(SessionShards, UnknownEnumValueFailsItsRowAlone) {
  v1::StreamRequest bad = ShardStep(1, 1);
  bad.mutable_step()->mutable_logits()->set_tensor_rows(2);
  bad.mutable_step()->mutable_rows(1)->mutable_verify_draft()->set_mode(static_cast<v1::VerifyMode>(8));
  workers_[0]->Send(ShardStep(1, 0));
  workers_[1]->Send(bad);
  workers_[2]->Send(ShardStep(1, 2));
  const std::vector<v1::RowResult> results = workers_[1]->Results(1, 2);
  EXPECT_TRUE(results.at(0).has_draw());
  ExpectError(results.at(1), Reason::kUnknownEnumValue, "step.rows[1].verify_draft.mode");
  workers_[1]->Send(ShardStep(2, 1));  // of another step
  EXPECT_EQ(engine_->shards().waiting(), 3u);
}

TEST_F(SessionShards, ReusedBatchIdIsRejectedByIndex) {
  SendShards(1, {1, 1});
  ExpectError(workers_[1]->Rejected().error(), Reason::kContradiction, "step.batch_id");
  SendShards(1, {0, 2});
  EXPECT_EQ(Draws(1).size(), 2u);
}

TEST_F(SessionShards, EndedStreamsDropTheirShards) {
  SendShards(1, {0, 1});
  Reconnect(1);
  SendShards(1, {2, 1});
  EXPECT_EQ(Draws(1).size(), 2u);
  workers_[2]->Send(ShardStep(2, 2));
  workers_[2]->Disconnect();
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  workers_[2] = std::make_unique<StreamWorker>(engine_.get());
}

TEST_F(SessionShards, OtherWorkerSessionsAreApart) {
  StreamWorker stranger(engine_.get(), {.worker_session = "another"});
  SendShards(1, {0, 1});
  stranger.Send(ShardStep(1, 2));
  EXPECT_EQ(engine_->shards().waiting(), 4u);
  workers_[2]->Send(ShardStep(1, 2));
  EXPECT_EQ(Draws(1).size(), 2u);
}

// A sequence with state: the answer is remembered, and a step that waits for its shards is in flight.
TEST_F(SessionShards, StatefulSequencesKeepTheirRules) {
  const uint64_t hash = OpenStateful(2);
  const auto shard_step = [&](uint64_t batch, uint64_t step_id, uint32_t index) {
    v1::StreamRequest request = ShardStep(batch, index);
    for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) {
      row.set_step_id(step_id);
      row.set_history_hash(hash);
    }
    return request;
  };
  workers_[0]->Send(shard_step(1, 1, 0));
  Pass(engine_->limits().shard_wait);
  ExpectRowErrors(0, 1, 2, Reason::kDeadlinePassed, "step.logits.shard");
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(shard_step(2, 1, i));
  const std::vector<std::string> draws = Draws(2);
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(shard_step(3, 1, i));
  EXPECT_EQ(Draws(3), draws) << "the same answer again";
}

// Sends shards of many steps, with a thread for each stream.
TEST_F(SessionShards, StreamsOfSeveralThreadsAssemble) {
  const uint64_t steps = testing::Scaled(200);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kShards; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t batch = 1; batch <= steps; ++batch) {
        workers_[i]->Send(ShardStep(batch, i));
        for (const v1::RowResult& row : workers_[i]->Results(batch, 2)) EXPECT_TRUE(row.has_draw());
        workers_[i]->LetLeave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine_->shards().waiting(), 0u);
}

}  // namespace
}  // namespace sortition::service::session_shards_test
