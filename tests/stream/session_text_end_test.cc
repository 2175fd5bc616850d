// Ends of texts on a stream: repetitions and banned phrases under draws, drafts, retries and replays; bans of
// one step.

#include <map>
#include <optional>
#include <random>

#include "tests/support/judged_rows.h"
#include "tests/support/plain_history.h"

namespace sortition::service::session_text_end_test {
namespace {

constexpr uint32_t kVocabulary = 40;

void BanPhrase(std::initializer_list<uint32_t> tokens, v1::SamplingParameters* parameters) {
  v1::TokenSequence& phrase = *parameters->add_banned_phrases();
  for (const uint32_t token : tokens) phrase.add_tokens(token);
}

class SessionTextEnd : public ::testing::Test {
 protected:
  SessionTextEnd() {
    open_ = MakeOpen("a", 1, kVocabulary);
    for (const uint32_t token : {5u, 6u}) open_.mutable_history()->add_tokens(token);
    open_.mutable_history()->set_prompt_length(2);
  }

  void Open() {
    worker_.MustOpen(open_);
    plain_.emplace(open_);
  }

  // Adds a draw at the text's end that wants `token`.
  v1::StepRow& AddDraw(StepBuilder* step, uint32_t token) {
    v1::StepRow& row = step->AddRow("a", ++step_, plain_->position(), F32Peak(kVocabulary, token));
    row.set_history_hash(plain_->hash());
    return row;
  }
  v1::RowResult Run(const StepBuilder& step) { return worker_.RunOne(step.Build()); }
  v1::DrawResult Draw(uint32_t token) {
    StepBuilder step(++batch_, kVocabulary);
    AddDraw(&step, token);
    const v1::RowResult result = Run(step);
    EXPECT_TRUE(result.has_draw()) << result.ShortDebugString();
    plain_->Append(result.draw().token());
    return result.draw();
  }
  // Verifies drafts that rows of peaks want, and one token more.
  v1::VerifyResult Verify(const std::vector<uint32_t>& drafts, uint32_t last,
                          v1::VerifyMode mode = v1::VERIFY_MODE_COUPLED) {
    StepBuilder step(++batch_, kVocabulary);
    v1::StepRow& row = AddDraw(&step, drafts[0]);
    for (size_t i = 1; i < drafts.size(); ++i) step.AddTensorRow(F32Peak(kVocabulary, drafts[i]));
    step.AddTensorRow(F32Peak(kVocabulary, last));
    row.mutable_verify_draft()->set_mode(mode);
    row.mutable_verify_draft()->mutable_draft_tokens()->Assign(drafts.begin(), drafts.end());
    for (size_t i = 0; i < drafts.size() && mode == v1::VERIFY_MODE_BLOCK; ++i) {
      v1::SparseProbabilities& drafter = *row.mutable_verify_draft()->add_sparse_probabilities();
      drafter.add_tokens(drafts[i]);
      drafter.add_probabilities(1);
    }
    const v1::RowResult result = Run(step);
    EXPECT_TRUE(result.has_verify()) << result.ShortDebugString();
    for (const uint32_t token : testing::TokensOf(result.verify())) plain_->Append(token);
    return result.verify();
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
  v1::OpenSequence open_;
  std::optional<PlainSequence> plain_;
  uint64_t batch_ = 0;
  uint64_t step_ = 0;
};

class SessionRepetition : public SessionTextEnd {
 protected:
  SessionRepetition() {
    *open_.mutable_parameters() = ParametersOf("repetition_stop { repeats: 3 max_period: 4 min_length: 0 }");
  }
};

TEST_F(SessionRepetition, ThirdTimeIsTheFinishReason) {
  Open();
  std::vector<uint32_t> finished;
  const std::vector<uint32_t> wanted = {6, 6, 1, 2, 1, 2, 1, 2, 3};
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    const v1::DrawResult draw = Draw(wanted[i]);
    EXPECT_EQ(draw.token(), wanted[i]);
    if (draw.finish_reason() == v1::FINISH_REASON_REPETITION) finished.push_back(i);
  }
  EXPECT_EQ(finished, (std::vector<uint32_t>{7}));
}

TEST_F(SessionRepetition, StopTokenIsNamedFirst) {
  open_.mutable_parameters()->add_stop_token_ids(9);
  Open();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Draw(9).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(Draw(9).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
}

// The text with drafts equals the text of single draws: same end, same continuation.
TEST_F(SessionRepetition, AcceptedDraftsEndWithIt) {
  Open();
  v1::VerifyResult verify = Verify({1, 2, 1, 2, 1, 2, 1}, 3);
  EXPECT_EQ(testing::TokensOf(verify), (std::vector<uint32_t>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(verify.accepted(), 6u);
  EXPECT_EQ(verify.matched(), 7u);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_REPETITION);
  EXPECT_EQ(verify.history_hash(), plain_->hash());
  verify = Verify({4, 4}, 4);
  EXPECT_EQ(verify.positions_size(), 3);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_REPETITION);
}

// A block ends alike, in its middle and with the token after its last draft.
TEST_F(SessionRepetition, AcceptedBlockEndsWithIt) {
  Open();
  v1::VerifyResult verify = Verify({1, 2, 1, 2, 1, 2, 1}, 3, v1::VERIFY_MODE_BLOCK);
  EXPECT_EQ(testing::TokensOf(verify), (std::vector<uint32_t>{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(verify.accepted(), 6u);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_REPETITION);
  EXPECT_EQ(verify.history_hash(), plain_->hash());
  verify = Verify({4, 4}, 4, v1::VERIFY_MODE_BLOCK);
  EXPECT_EQ(verify.positions_size(), 3);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_REPETITION);
  verify = Verify({4, 4}, 5, v1::VERIFY_MODE_BLOCK);
  EXPECT_EQ(verify.positions_size(), 1);
  EXPECT_EQ(verify.finish_reason(), v1::FINISH_REASON_REPETITION);
}

TEST_F(SessionRepetition, RetryRepeatsTheReason) {
  Open();
  for (int i = 0; i < 2; ++i) Draw(7);
  StepBuilder step(++batch_, kVocabulary);
  AddDraw(&step, 7);
  const v1::RowResult first = Run(step);
  EXPECT_EQ(first.draw().finish_reason(), v1::FINISH_REASON_REPETITION);
  step.step().set_batch_id(++batch_);
  EXPECT_EQ(Run(step).SerializeAsString(), first.SerializeAsString());
}

// A replayed history finds the same ends as the lost state.
TEST_F(SessionRepetition, ReplayedHistoryKnowsItsRuns) {
  Open();
  for (const uint32_t token : {1u, 2u, 1u, 2u, 1u}) Draw(token);
  open_.set_epoch(2);
  open_.mutable_history()->mutable_tokens()->Assign(plain_->tokens().begin(), plain_->tokens().end());
  Open();
  EXPECT_EQ(Draw(2).finish_reason(), v1::FINISH_REASON_REPETITION);
}

// A cut takes back the run that it cuts.
TEST_F(SessionRepetition, CutRunsAreNoRepetition) {
  Open();
  for (const uint32_t token : {1u, 1u, 3u}) Draw(token);
  StepBuilder step(++batch_, kVocabulary);
  plain_->TruncateTo(4);
  AddDraw(&step, 1).set_truncate_to(4);
  EXPECT_EQ(Run(step).draw().finish_reason(), v1::FINISH_REASON_REPETITION);
  plain_->TruncateTo(3);
  StepBuilder other(++batch_, kVocabulary);
  AddDraw(&other, 1).set_truncate_to(3);
  EXPECT_EQ(Run(other).draw().finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
}

class SessionPhrases : public SessionTextEnd {
 protected:
  SessionPhrases() { BanPhrase({1, 2, 3}, open_.mutable_parameters()); }
};

TEST_F(SessionPhrases, CompletingTokenNamesThePhrase) {
  Open();
  EXPECT_FALSE(Draw(1).has_rewind());
  EXPECT_FALSE(Draw(2).has_rewind());
  const v1::DrawResult draw = Draw(3);
  EXPECT_EQ(draw.token(), 3u);
  ASSERT_TRUE(draw.has_rewind());
  EXPECT_EQ(draw.rewind().position(), 2u);
  EXPECT_EQ(std::vector<uint32_t>(draw.rewind().tokens().begin(), draw.rewind().tokens().end()),
            (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(draw.history_hash(), plain_->hash());
}

// The next step bans the phrase's first token at its position; the bans of several rewinds add up.
TEST_F(SessionPhrases, RewindDrawsAnotherToken) {
  BanPhrase({4}, open_.mutable_parameters());
  Open();
  for (const uint32_t token : {1u, 2u, 3u}) Draw(token);
  plain_->TruncateTo(2);
  std::vector<float> logits(kVocabulary);
  logits[1] = 30, logits[4] = 29, logits[8] = 28;
  StepBuilder step(++batch_, kVocabulary);
  v1::StepRow& row = step.AddRow("a", ++step_, 2, F32Bytes(logits));
  row.set_history_hash(plain_->hash());
  row.set_truncate_to(2);
  row.mutable_mask()->add_banned_tokens(1);
  const v1::RowResult second = Run(step);
  EXPECT_EQ(second.draw().token(), 4u);
  EXPECT_EQ(second.draw().rewind().position(), 2u);
  row.set_step_id(++step_);
  step.step().set_batch_id(++batch_);
  row.mutable_mask()->add_banned_tokens(4);
  const v1::RowResult third = Run(step);
  EXPECT_EQ(third.draw().token(), 8u);
  EXPECT_FALSE(third.draw().has_rewind());
}

// Drafts behind the one that completes the phrase are withheld.
TEST_F(SessionPhrases, AcceptedDraftsEndWithThePhrase) {
  Open();
  v1::VerifyResult verify = Verify({9, 1, 2, 3, 7}, 7);
  EXPECT_EQ(testing::TokensOf(verify), (std::vector<uint32_t>{9, 1, 2, 3}));
  EXPECT_EQ(verify.accepted(), 4u);
  EXPECT_EQ(verify.rewind().position(), 3u);
  // A phrase that began before the row.
  for (const uint32_t token : {1u, 2u}) Draw(token);
  verify = Verify({3}, 7);
  EXPECT_EQ(verify.positions_size(), 1);
  EXPECT_EQ(verify.rewind().position(), 6u);
  // The token after the accepted drafts.
  verify = Verify({1, 2}, 3);
  EXPECT_EQ(verify.positions_size(), 3);
  EXPECT_EQ(verify.rewind().position(), 9u);
}

TEST_F(SessionPhrases, AcceptedBlockEndsWithThePhrase) {
  Open();
  v1::VerifyResult verify = Verify({9, 1, 2, 3, 7}, 7, v1::VERIFY_MODE_BLOCK);
  EXPECT_EQ(testing::TokensOf(verify), (std::vector<uint32_t>{9, 1, 2, 3}));
  EXPECT_EQ(verify.accepted(), 4u);
  EXPECT_EQ(verify.rewind().position(), 3u);
  EXPECT_EQ(verify.history_hash(), plain_->hash());
  verify = Verify({1, 2}, 3, v1::VERIFY_MODE_BLOCK);
  EXPECT_EQ(verify.positions_size(), 3);
  EXPECT_EQ(verify.rewind().position(), 6u);
}

// A rewind behind the kept history is refused by name, as any cut, and a replay answers it.
TEST_F(SessionPhrases, RewindPastKeptHistoryIsRefused) {
  TestEngine small = TestEngine::OnCpu({.kept_history = 1});
  StreamWorker worker(small.get());
  open_.mutable_history()->mutable_tokens()->Resize(300, 5);
  open_.mutable_history()->set_prompt_length(0);
  worker.MustOpen(open_);
  PlainSequence plain(open_);
  plain.TruncateTo(100);
  StepBuilder step(1, kVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 100, F32Peak(kVocabulary, 1));
  row.set_history_hash(plain.hash());
  row.set_truncate_to(100);
  row.mutable_mask()->add_banned_tokens(1);
  ExpectError(worker.Run(step.Build()).at(0), Reason::kHistoryRequired, "step.rows[0].truncate_to");
  open_.set_epoch(2);
  open_.mutable_history()->mutable_tokens()->Truncate(100);
  worker.MustOpen(open_);
  row.clear_truncate_to();
  step.step().set_batch_id(2);
  EXPECT_NE(worker.Run(step.Build()).at(0).draw().token(), 1u);
}

class SessionBans : public SessionTextEnd {
 protected:
  SessionBans() {
    open_.clear_history();
    worker_.MustOpen(open_);
  }
  StepBuilder Step(v1::StepRow** row, uint32_t token = 3) {
    StepBuilder step(++batch_, kVocabulary);
    *row = &step.AddRow("a", ++step_, 0, F32Peak(kVocabulary, token));
    return step;
  }
};

TEST_F(SessionBans, BannedTokensAreNotDrawn) {
  v1::StepRow* row;
  StepBuilder step = Step(&row);
  row->mutable_mask()->add_banned_tokens(3);
  EXPECT_NE(Run(step).draw().token(), 3u);
  StepBuilder both = Step(&row);
  for (const uint32_t token : {3u, 7u}) row->mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
  for (const uint32_t token : {3u, 3u, 9u}) row->mutable_mask()->add_banned_tokens(token);
  EXPECT_EQ(Run(both).draw().token(), 7u);
  StepBuilder packed = Step(&row);
  std::vector<bool> allowed(kVocabulary);
  allowed[3] = allowed[8] = true;
  row->mutable_mask()->set_mask_row(packed.AddMask(allowed));
  row->mutable_mask()->add_banned_tokens(3);
  EXPECT_EQ(Run(packed).draw().token(), 8u);
}

// A sequence's edits stay under a step's bans.
TEST_F(SessionBans, EqualsBanOfTheSequence) {
  v1::OpenSequence banned = open_;
  banned.set_request_id("b");
  for (v1::OpenSequence* open : {&open_, &banned}) {
    open->set_epoch(2);
    open->mutable_parameters()->mutable_processed_logprobs()->set_top(5);
    for (const uint32_t token : {2u, 9u}) AddBias(token, 2, open->mutable_parameters());
  }
  for (const uint32_t token : {1u, 9u}) banned.mutable_parameters()->add_banned_token_ids(token);
  worker_.MustOpen(open_);
  worker_.MustOpen(banned);
  for (uint32_t n = 0; n < 30; ++n) {
    StepBuilder step(++batch_, kVocabulary);
    std::mt19937_64 random(n);
    const std::string logits = RandomLogits(kernels::DType::kF32, kVocabulary, &random);
    v1::StepRow& row = step.AddRow("a", ++step_, n, logits);
    for (const uint32_t token : {9u, 1u}) row.mutable_mask()->add_banned_tokens(token);
    step.AddRow("b", step_, n, logits);
    const std::vector<v1::RowResult> results = worker_.Run(step.Build());
    ASSERT_EQ(results.size(), 2u);
    ASSERT_TRUE(results[0].has_draw());
    EXPECT_EQ(results[0].draw().SerializeAsString(), results[1].draw().SerializeAsString());
  }
}

TEST_F(SessionBans, BansHoldAtTheirPositions) {
  v1::StepRow* row;
  StepBuilder step = Step(&row);
  step.AddTensorRow(F32Peak(kVocabulary, 4));
  step.AddTensorRow(F32Peak(kVocabulary, 5));
  v1::VerifyDraft& chain = *row->mutable_verify_draft();
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  for (const uint32_t token : {3u, 4u}) chain.add_draft_tokens(token);
  chain.add_masks();
  chain.add_masks()->add_banned_tokens(9);
  chain.add_masks()->add_banned_tokens(5);
  const v1::VerifyResult verify = Run(step).verify();
  EXPECT_EQ(verify.accepted(), 2u);
  ASSERT_EQ(verify.positions_size(), 3);
  EXPECT_NE(verify.positions(2).token(), 5u);
  row->set_step_id(++step_);
  step.step().set_batch_id(++batch_);
  chain.mutable_masks(1)->add_banned_tokens(4);
  EXPECT_EQ(Run(step).verify().accepted(), 1u);
}

TEST_F(SessionBans, BanOfEveryTokenIsRefusedByName) {
  v1::StepRow* row;
  StepBuilder step = Step(&row);
  for (uint32_t token = 0; token < kVocabulary; ++token) row->mutable_mask()->add_banned_tokens(token);
  ExpectError(Run(step), Reason::kNoLiveToken, "step.rows[0].mask.banned_tokens");
}

TEST_F(SessionBans, BadBansAreRefusedByName) {
  v1::StepRow* row;
  StepBuilder beyond = Step(&row);
  for (const uint32_t token : {1u, kVocabulary}) row->mutable_mask()->add_banned_tokens(token);
  ExpectError(Run(beyond), Reason::kOutOfRange, "step.rows[0].mask.banned_tokens[1]");
  StepBuilder empty = Step(&row);
  row->mutable_mask();
  ExpectError(Run(empty), Reason::kMissingField, "step.rows[0].mask.kind");
  TestEngine small = TestEngine::OnCpu({.max_listed_tokens = 2});
  StreamWorker worker(small.get());
  worker.MustOpen(open_);
  StepBuilder many = Step(&row);
  for (const uint32_t token : {1u, 2u, 3u}) row->mutable_mask()->add_banned_tokens(token);
  ExpectError(worker.Run(many.Build()).at(0), Reason::kTooMany, "step.rows[0].mask.banned_tokens");
}

// A retry with other bans is another step.
TEST_F(SessionBans, RetryWithOtherBansIsRefused) {
  open_.mutable_parameters()->set_presence_penalty(0.5f);
  open_.mutable_history();
  open_.set_epoch(2);
  Open();
  StepBuilder step(++batch_, kVocabulary);
  v1::StepRow& row = AddDraw(&step, 3);
  row.mutable_mask()->add_banned_tokens(1);
  EXPECT_EQ(Run(step).draw().token(), 3u);
  row.mutable_mask()->add_banned_tokens(2);
  step.step().set_batch_id(++batch_);
  ExpectError(Run(step), Reason::kStepConflict, "step.rows[0].step_id");
}

// Random texts with a phrase and a stop, drafts or not, against the definitions.
TEST(SessionTextEnds, EqualDefinitionsUnderDrafts) {
  v1::OpenSequence open = MakeOpen("a", 1, kModelVocabulary);
  open.mutable_history();
  *open.mutable_parameters() = ParametersOf("top_k: 3 repetition_stop { repeats: 2 max_period: 3 min_length: 3 }");
  for (uint32_t token = 0; token < 4; ++token) {
    BanPhrase({token * 3, (token + 1) % 4 * 3}, open.mutable_parameters());
  }
  for (uint32_t token = 0; token < 4; ++token) AddBias(token * 3, 4, open.mutable_parameters());
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  worker.MustOpen(open);
  Writer writer(open, 3);
  std::mt19937_64 random(9);
  std::map<std::string, uint64_t> seen;
  for (uint64_t n = 1; n <= 400; ++n) {
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, writer.plain.position(), writer.LogitsOf({}));
    row.set_history_hash(writer.plain.hash());
    std::vector<uint32_t> ahead;
    for (uint32_t i = 0; i < n % 4; ++i) {
      ahead.push_back(random() % 4 == 0 ? static_cast<uint32_t>(random() % 12) : writer.Right(ahead).token());
      step.AddTensorRow(writer.LogitsOf(ahead));
    }
    if (!ahead.empty()) {
      row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
      row.mutable_verify_draft()->mutable_draft_tokens()->Assign(ahead.begin(), ahead.end());
    }
    const std::vector<v1::RowResult> results = worker.Run(step.Build());
    ASSERT_EQ(results.size(), 1u);
    ASSERT_FALSE(results[0].has_error()) << results[0].ShortDebugString();
    // Token by token, as without drafts.
    const auto& parameters = open.parameters();
    const bool drafts = !ahead.empty();
    const size_t count = drafts ? static_cast<size_t>(results[0].verify().positions_size()) : 1;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t right = writer.Right({}).token();
      const auto at = static_cast<int>(i);
      ASSERT_EQ(drafts ? results[0].verify().positions(at).token() : results[0].draw().token(), right) << n;
      writer.Append(right);
      const bool repeats = testing::PlainRepeats(parameters, writer.plain.tokens(), 0);
      const auto from = testing::PlainPhraseFrom(parameters, writer.plain.tokens(), 0);
      const bool is_last = i + 1 == count;
      if (!is_last) {
        ASSERT_FALSE(repeats || from) << "step " << n;
        continue;
      }
      const auto reason = drafts ? results[0].verify().finish_reason() : results[0].draw().finish_reason();
      const v1::Rewind& rewind = drafts ? results[0].verify().rewind() : results[0].draw().rewind();
      ASSERT_EQ(reason == v1::FINISH_REASON_REPETITION, repeats) << "step " << n;
      ASSERT_EQ(rewind.tokens().empty() ? std::nullopt : std::optional(rewind.position()), from) << "step " << n;
      const bool is_cut = drafts && count <= ahead.size() && right == ahead[i];
      ASSERT_EQ(is_cut, is_cut && (repeats || from.has_value())) << "step " << n;
      ++seen[repeats ? "repeats" : "continues"], ++seen[from ? "phrase" : "none"], ++seen[is_cut ? "cut" : "whole"];
    }
    worker.LetLeave();
  }
  for (const char* kind : {"repeats", "continues", "phrase", "none", "cut", "whole"}) EXPECT_GT(seen[kind], 5u) << kind;
}

}  // namespace
}  // namespace sortition::service::session_text_end_test
