// Samplers that depend on past probabilities: their checkpoint goes to the worker and comes back, to any replica that
// shares the key.

#include "tests/stream/keyed_replica.h"

namespace sortition::service::session_checkpoint_test {
namespace {

constexpr uint32_t kVocabulary = 64;

v1::OpenSequence Mirostat(std::string_view request_id) {
  v1::OpenSequence open = MakeOpen(request_id, 1, kVocabulary);
  open.mutable_parameters()->mutable_mirostat()->set_version(2);
  open.mutable_parameters()->mutable_mirostat()->set_tau(2);
  return open;
}

// Returns the same logits for every step at a position.
std::string LogitsAt(uint32_t position) {
  std::mt19937_64 random(position);
  return RandomLogits(kernels::DType::kF32, kVocabulary, &random);
}

// A sequence that keeps its text, which begins with `history`.
v1::OpenSequence StatefulMirostat(const std::vector<uint32_t>& history) {
  v1::OpenSequence open = Mirostat("a");
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_history()->mutable_tokens()->Assign(history.begin(), history.end());
  open.mutable_history()->set_prompt_length(static_cast<uint32_t>(history.size()));
  return open;
}

// A step of it.
StepBuilder StatefulStep(uint64_t batch_id, uint64_t step_id, const PlainSequence& plain,
                         const std::string& checkpoint) {
  StepBuilder builder(batch_id, kVocabulary);
  v1::StepRow& row = builder.AddRow("a", step_id, plain.position(), LogitsAt(plain.position()));
  row.set_history_hash(plain.hash());
  row.set_checkpoint(checkpoint);
  return builder;
}

v1::RowResult Step(Replica* replica, std::string_view request_id, uint32_t position, const std::string& checkpoint) {
  StepBuilder step(position + 1, kVocabulary);
  v1::StepRow& row = step.AddRow(request_id, position + 1, position, LogitsAt(position));
  if (!checkpoint.empty()) row.set_checkpoint(checkpoint);
  return replica->worker().Run(step.Build()).at(0);
}

TEST(SessionCheckpoint, ReplicaWithKeyContinuesIdentically) {
  Replica first(KeyOf('k')), second(KeyOf('k'));
  first.worker().MustOpen(Mirostat("a"));
  second.worker().MustOpen(Mirostat("a"));
  std::string checkpoint;
  std::set<std::string> checkpoints;
  for (uint32_t position = 0; position < 40; ++position) {
    const v1::RowResult there = Step(&first, "a", position, checkpoint);
    const v1::RowResult here = Step(&second, "a", position, checkpoint);
    ASSERT_TRUE(here.has_draw()) << here.ShortDebugString();
    ASSERT_EQ(here.SerializeAsString(), there.SerializeAsString());
    checkpoint = here.draw().checkpoint();
    EXPECT_TRUE(checkpoints.insert(checkpoint).second) << "the sampler has not moved";
  }
}

TEST(SessionCheckpoint, AlteredOrForeignCheckpointFailsAlone) {
  Replica replica(KeyOf('k')), stranger(std::nullopt);
  for (const char* name : {"a", "b"}) {
    replica.worker().MustOpen(Mirostat(name));
    stranger.worker().MustOpen(Mirostat(name));
  }
  const std::string checkpoint = Step(&replica, "a", 0, "").draw().checkpoint();
  std::string tampered = checkpoint;
  tampered[3] = static_cast<char>(tampered[3] ^ 1);

  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 1, LogitsAt(1)).set_checkpoint(tampered);
  step.AddRow("b", 1, 1, LogitsAt(1)).set_checkpoint(checkpoint);
  const std::vector<v1::RowResult> results = replica.worker().Run(step.Build());
  ExpectError(results.at(0).error(), Reason::kCheckpointRefused, "step.rows[0].checkpoint");
  ExpectError(results.at(1).error(), Reason::kCheckpointRefused, "step.rows[1].checkpoint");
  EXPECT_TRUE(Step(&replica, "a", 1, checkpoint).has_draw()) << "nothing was changed by it";

  const v1::RowResult elsewhere = Step(&stranger, "a", 1, checkpoint);
  ExpectError(elsewhere.error(), Reason::kCheckpointRefused, "step.rows[0].checkpoint");
  EXPECT_NE(elsewhere.error().message().find("--checkpoint_key"), std::string::npos);
}

// A sequence that keeps state takes the checkpoint of its last step alone, unless it rewrites its text; a retry repeats
// the answer with its checkpoint.
TEST(SessionCheckpoint, BelongsToItsPositionAndHistory) {
  Replica replica(KeyOf('k'));
  const v1::OpenSequence open = StatefulMirostat({1});
  replica.worker().MustOpen(open);
  PlainSequence plain(open);
  uint64_t batch = 0;
  const auto step = [&](uint64_t step_id, const std::string& checkpoint, std::optional<uint32_t> truncate_to) {
    StepBuilder builder = StatefulStep(++batch, step_id, plain, checkpoint);
    if (truncate_to) builder.step().mutable_rows(0)->set_truncate_to(*truncate_to);
    return replica.worker().Run(builder.Build()).at(0);
  };
  const v1::RowResult first = step(1, "", std::nullopt);
  ASSERT_TRUE(first.has_draw());
  EXPECT_EQ(step(1, "", std::nullopt).SerializeAsString(), first.SerializeAsString());
  plain.Append(first.draw().token());
  const v1::RowResult second = step(2, first.draw().checkpoint(), std::nullopt);
  ASSERT_TRUE(second.has_draw());
  plain.Append(second.draw().token());
  ExpectError(step(3, first.draw().checkpoint(), std::nullopt).error(), Reason::kCheckpointRefused,
              "step.rows[0].checkpoint");
  plain.TruncateTo(2);
  const v1::RowResult again = step(4, first.draw().checkpoint(), 2);
  ASSERT_TRUE(again.has_draw()) << again.ShortDebugString();
  EXPECT_EQ(again.draw().token(), second.draw().token());
  EXPECT_EQ(again.draw().checkpoint(), second.draw().checkpoint());
}

// A worker that rewrote its text and then lost the replica sends the rewritten history, and its step has no rewrites
// any more.
TEST(SessionCheckpoint, HoldsForRewrittenHistory) {
  Replica first(KeyOf('k')), second(KeyOf('k'));
  v1::OpenSequence open = StatefulMirostat({1});
  first.worker().MustOpen(open);
  PlainSequence plain(open);
  const auto step = [&](uint64_t id, const std::string& checkpoint) { return StatefulStep(id, id, plain, checkpoint); };
  const std::string checkpoint = first.worker().Run(step(1, "").Build()).at(0).draw().checkpoint();
  for (const uint32_t token : {7u, 8u}) plain.Append(token);
  StepBuilder rewritten = step(2, checkpoint);
  rewritten.step().mutable_rows(0)->set_truncate_to(1);
  for (const uint32_t token : {7u, 8u}) rewritten.step().mutable_rows(0)->add_append_tokens(token);
  const v1::RowResult there = first.worker().Run(rewritten.Build()).at(0);
  ASSERT_TRUE(there.has_draw()) << there.ShortDebugString();

  for (const uint32_t token : {7u, 8u}) open.mutable_history()->add_tokens(token);
  second.worker().MustOpen(open);
  const v1::RowResult here = second.worker().Run(step(2, checkpoint).Build()).at(0);
  EXPECT_EQ(here.SerializeAsString(), there.SerializeAsString());
  plain.Append(here.draw().token());
  ExpectError(second.worker().Run(step(3, checkpoint).Build()).at(0).error(), Reason::kCheckpointRefused,
              "step.rows[0].checkpoint");
  // Step 3 may have been answered elsewhere and reverted.
  EXPECT_TRUE(second.worker().Run(step(4, checkpoint).Build()).at(0).has_draw());
}

// The history is checked first: a server with another history requests the worker's, with any checkpoint.
TEST(SessionCheckpoint, OtherHistoryIsNotACheckpointError) {
  Replica replica(KeyOf('k'));
  const v1::OpenSequence open = StatefulMirostat({});
  replica.worker().MustOpen(open);
  PlainSequence plain(open);
  const v1::DrawResult first = replica.worker().RunOne(StatefulStep(1, 1, plain, "").Build()).draw();
  plain.Append(first.token());
  plain.Append(9);  // somewhere else
  const v1::StreamRequest elsewhere = StatefulStep(2, 2, plain, first.checkpoint()).Build();
  ExpectError(replica.worker().RunOne(elsewhere).error(), Reason::kHistoryRequired, "step.rows[0].position");
}

TEST(SessionCheckpoint, StatelessSamplersHaveNone) {
  Replica replica(KeyOf('k'));
  replica.worker().MustOpen(MakeOpen("a", 1, kVocabulary));
  EXPECT_TRUE(Step(&replica, "a", 0, "").draw().checkpoint().empty());
  ExpectError(Step(&replica, "a", 1, "x").error(), Reason::kContradiction, "step.rows[0].checkpoint");
}

}  // namespace
}  // namespace sortition::service::session_checkpoint_test
