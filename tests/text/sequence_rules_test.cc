// The rules of steps, retries and ownership for one sequence.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "service/sequence/sequence.h"
#include "service/text/cost.h"
#include "service/text/history/history_hash.h"
#include "tests/support/expect_error.h"

namespace sortition::service::sequence_rules_test {
namespace {

std::shared_ptr<SequenceSpec> Spec() {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->seed = 9;
  spec->vocabulary = spec->live_vocabulary = 100;
  spec->repetition_penalty = 1.5f;
  return spec;
}

RowResult Token(uint32_t token) {
  kernels::RowOutput answer;
  answer.token = token;
  return RowResult::Drawn(std::move(answer));
}

std::variant<SequencePosition, Refusal> TakeOver(Sequence& sequence, const SequenceOwner& owner,
                                                 std::shared_ptr<const SequenceSpec> spec,
                                                 std::unique_ptr<Text>* replayed) {
  std::unique_ptr<Text> replaced;
  return sequence.TakeOver(owner, std::move(spec), replayed, &replaced);
}

std::optional<Refusal> Retire(Sequence& sequence) {
  std::unique_ptr<Text> state;
  return sequence.RetireUpTo(UINT64_MAX, &state);
}

class SequenceRules : public ::testing::Test {
 protected:
  static constexpr uint32_t kKept = 64;

  SequenceRules() {
    auto prompt = Prompt();
    const auto taken = TakeOver(sequence_, owner_, spec_, &prompt);
    EXPECT_TRUE(std::holds_alternative<SequencePosition>(taken));
    hash_ = std::get<SequencePosition>(taken).history_hash;
  }

  std::unique_ptr<Text> Prompt() const { return Text::Build(spec_, std::vector<uint32_t>{1, 2, 3}, 3, kKept); }
  // Returns the hash of the prompt followed by `tokens`.
  uint64_t HashWith(const std::vector<uint32_t>& tokens) const {
    uint64_t token_hash = kEmptyHash;
    for (const uint32_t token : {1u, 2u, 3u}) token_hash = ExtendTokenHash(token_hash, token);
    for (const uint32_t token : tokens) token_hash = ExtendTokenHash(token_hash, token);
    return HistoryHash(token_hash, 3, HistoryDigest(spec_->Identity()));
  }

  std::variant<std::unique_ptr<Text>, Refusal> Fork(const SequenceOwner& owner,
                                                    std::shared_ptr<const SequenceSpec> spec,
                                                    std::optional<uint32_t> position) {
    Bill bill;
    return sequence_.Fork(owner, std::move(spec), position, &bill);
  }
  StepIntent Intent(uint64_t id, uint32_t position, std::optional<uint64_t> hash) {
    StepIntent intent;
    intent.step_id = id;
    intent.position = position;
    intent.history_hash = hash;
    return intent;
  }

  // Runs a step to its answer.
  RowResult Run(const StepIntent& intent, uint32_t token) {
    auto begun = sequence_.Begin(owner_, intent);
    EXPECT_TRUE(std::holds_alternative<StepGrant>(begun));
    auto committed = sequence_.Commit(std::get<StepGrant>(begun).ticket, Token(token));
    EXPECT_TRUE(std::holds_alternative<RowResult>(committed));
    return std::get<RowResult>(committed);
  }

  Reason WhyNot(const SequenceOwner& owner, const StepIntent& intent) {
    auto begun = sequence_.Begin(owner, intent);
    EXPECT_TRUE(std::holds_alternative<Refusal>(begun));
    return std::holds_alternative<Refusal>(begun) ? std::get<Refusal>(begun).reason : Reason::kMalformedMessage;
  }

  const std::shared_ptr<SequenceSpec> spec_ = Spec();
  const SequenceOwner owner_{10, 1};
  Sequence sequence_{owner_, spec_, kKept};
  uint64_t hash_ = 0;
};

TEST_F(SequenceRules, RepeatedStepGetsSameAnswerCountsOnce) {
  const StepIntent intent = Intent(1, 3, hash_);
  const RowResult first = Run(intent, 42);
  EXPECT_EQ(first.history_hash, HashWith({42}));
  for (int i = 0; i < 3; ++i) {
    auto again = sequence_.Begin(owner_, intent);
    ASSERT_TRUE(std::holds_alternative<RepeatedResult>(again));
    EXPECT_EQ(std::get<RepeatedResult>(again).result->outputs[0].token, 42u);
    EXPECT_EQ(std::get<RepeatedResult>(again).result->history_hash, first.history_hash);
  }
  Run(Intent(2, 4, first.history_hash), 5);
}

// A kept set may have millions of bytes, which would stay with each idle sequence. The same step after a replay draws
// the same token.
TEST_F(SequenceRules, LongResultIsNotKept) {
  auto begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  RowResult drawn = Token(42);
  drawn.outputs[0].kept_tokens.resize(kMaxRepeatedBytes / sizeof(kernels::TokenBits));
  const auto committed = sequence_.Commit(std::get<StepGrant>(begun).ticket, std::move(drawn));
  EXPECT_EQ(std::get<RowResult>(committed).outputs[0].kept_tokens.size(),
            kMaxRepeatedBytes / sizeof(kernels::TokenBits));
  EXPECT_LT(sequence_.bytes(), kMaxRepeatedBytes);
  begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  const Refusal why = ExpectRefusal(begun, Reason::kHistoryRequired);
  EXPECT_EQ(why.field, "step_id");
  EXPECT_EQ(why.limit, absl::StrCat("max_repeated_bytes ", kMaxRepeatedBytes));
  auto prompt = Prompt();
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, owner_, spec_, &prompt)));
  EXPECT_TRUE(std::holds_alternative<StepGrant>(sequence_.Begin(owner_, Intent(1, 3, hash_))));
}

TEST_F(SequenceRules, LowerIdIsStaleChangedOptionsConflict) {
  const RowResult first = Run(Intent(5, 3, hash_), 42);
  Run(Intent(9, 4, first.history_hash), 43);
  EXPECT_EQ(WhyNot(owner_, Intent(5, 3, hash_)), Reason::kStaleStep);
  StepIntent other = Intent(9, 4, first.history_hash);
  other.options_digest = 1;
  EXPECT_EQ(WhyNot(owner_, other), Reason::kStepConflict);
}

TEST_F(SequenceRules, OneStepAtATime) {
  auto begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  EXPECT_EQ(WhyNot(owner_, Intent(1, 3, hash_)), Reason::kStepInFlight);
  EXPECT_EQ(WhyNot(owner_, Intent(2, 3, hash_)), Reason::kStepInFlight);
  std::unique_ptr<Text> state;
  EXPECT_FALSE(sequence_.RetireIfIdle(&state));
  sequence_.Abort(std::get<StepGrant>(begun).ticket);
  Run(Intent(1, 3, hash_), 4);
}

TEST_F(SequenceRules, GapOrOtherHistoryAsksForReplay) {
  EXPECT_EQ(WhyNot(owner_, Intent(1, 4, hash_)), Reason::kHistoryRequired);
  EXPECT_EQ(WhyNot(owner_, Intent(1, 3, hash_ ^ 1)), Reason::kHistoryRequired);
  StepIntent below = Intent(1, 2, hash_);
  below.truncate_to = 2;  // into the prompt, but with the hash of the whole prompt
  EXPECT_EQ(WhyNot(owner_, below), Reason::kHistoryRequired);
  StepIntent beyond = Intent(1, 4, hash_);
  beyond.truncate_to = 4;
  EXPECT_EQ(WhyNot(owner_, beyond), Reason::kHistoryRequired);
  StepIntent long_append = Intent(1, 3 + kKept + 1, hash_);
  long_append.append_tokens.resize(kKept + 1);
  EXPECT_EQ(WhyNot(owner_, long_append), Reason::kHistoryRequired);
  StepIntent wrong = Intent(1, 4, hash_);
  wrong.append_tokens = {8};
  EXPECT_EQ(WhyNot(owner_, wrong), Reason::kHistoryRequired);
  Run(Intent(1, 3, hash_), 4);
}

TEST_F(SequenceRules, OverriddenTokenIsReplaced) {
  const RowResult drawn = Run(Intent(1, 3, hash_), 42);
  StepIntent next = Intent(2, 5, HashWith({50, 51}));
  next.truncate_to = 3;
  next.append_tokens = {50, 51};
  EXPECT_EQ(Run(next, 60).history_hash, HashWith({50, 51, 60}));
  EXPECT_NE(drawn.history_hash, *next.history_hash);
}

// The rest of a cut prompt is the prompt; later tokens are output.
TEST_F(SequenceRules, CutIntoPromptShortensIt) {
  StepIntent cut = Intent(1, 2, 0);
  cut.truncate_to = 2;
  const uint64_t token_hash = ExtendTokenHash(ExtendTokenHash(kEmptyHash, 1), 2);
  const uint64_t digest = HistoryDigest(spec_->Identity());
  cut.history_hash = HistoryHash(token_hash, 2, digest);
  auto begun = sequence_.Begin(owner_, cut);
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  sequence_.Abort(std::get<StepGrant>(begun).ticket);
  // After the step is reverted, the prompt has its old length.
  begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  sequence_.Abort(std::get<StepGrant>(begun).ticket);
  EXPECT_EQ(Run(cut, 3).history_hash, HistoryHash(ExtendTokenHash(token_hash, 3), 2, digest));
}

// A device that still runs an abandoned step reads the edits that it was lent, unchanged by the new owner.
TEST_F(SequenceRules, AbortedStepKeepsEdits) {
  auto begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  const auto lent = std::get<StepGrant>(begun).views[0].edits;
  const std::vector<kernels::LogitEdit> copy = *lent;
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, {11, 2}, spec_, nullptr)));
  begun = sequence_.Begin({11, 2}, Intent(1, 3, hash_));
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  ASSERT_TRUE(std::holds_alternative<RowResult>(sequence_.Commit(std::get<StepGrant>(begun).ticket, Token(42))));
  EXPECT_EQ(*lent, copy);
}

// A fork's message is small, so the server reads no long history for it: the worker sends that.
TEST_F(SequenceRules, LongHistoryIsNotReadAnew) {
  const auto parent = std::make_shared<SequenceSpec>(*spec_);
  parent->history.no_repeat_ngram = 3;
  const auto child = std::make_shared<SequenceSpec>(*parent);
  child->history.no_repeat_ngram = 4;
  const auto more = static_cast<uint32_t>(kMaxPieceWork / (price::kRewrittenToken * RewriteTimes(true, 0))) + 1;
  auto state = Text::Build(parent, std::vector<uint32_t>(more, 7), 0, kKept);
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, owner_, parent, &state)));
  EXPECT_EQ(ExpectRefusal(Fork(owner_, child, std::nullopt), Reason::kHistoryRequired).limit,
            absl::StrCat("max_piece_work ", kMaxPieceWork));
  EXPECT_EQ(Fork(owner_, child, more * 99 / 100).index(), 0u);
  EXPECT_EQ(Fork(owner_, parent, std::nullopt).index(), 0u);
}

TEST_F(SequenceRules, RewritesArePricedByTheirTokens) {
  Run(Intent(1, 3, hash_), 42);
  StepIntent intent = Intent(2, 5, HashWith({5, 6}));
  intent.truncate_to = 3;
  intent.append_tokens = {5, 6};
  const uint64_t work = 3 * price::kRewrittenToken * RewriteTimes(*spec_);
  Bill bill;
  bill.BeginRow();
  ASSERT_TRUE(bill.Take(kMaxPieceWork - work + 1));
  const Refusal why = ExpectRefusal(sequence_.Begin(owner_, intent, {}, &bill), Reason::kHistoryRequired);
  EXPECT_EQ(why.field, "truncate_to");
  EXPECT_EQ(why.limit, absl::StrCat("max_piece_work ", kMaxPieceWork));
  bill.BeginRow();
  EXPECT_TRUE(std::holds_alternative<StepGrant>(sequence_.Begin(owner_, intent, {}, &bill)));
}

// After a long history each position of a row sees many edits, and a device needs all lists at once.
TEST_F(SequenceRules, EditsOfAMessageAreBounded) {
  const auto spec = std::make_shared<SequenceSpec>(*spec_);
  spec->vocabulary = spec->live_vocabulary = 1'000'000;
  spec->frequency_penalty = 0.5f;
  std::vector<uint32_t> history(400'000);
  std::iota(history.begin(), history.end(), 0);
  auto state = Text::Build(spec, history, 0, kKept);
  const uint64_t hash = state->history_hash();
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, owner_, spec, &state)));
  const TokenTree drafts = TokenTree::Chain(std::vector<uint32_t>(64, 1));
  Bill message;
  const auto begin = [&](EditsUse use, Bill* bill) {
    StepIntent intent = Intent(1, 400'000, hash);
    intent.edits_use = use;
    return sequence_.Begin(owner_, intent, drafts, bill);
  };
  const auto expect_refused = [&](Reason reason, const std::string& limit) {
    message.BeginRow();
    auto begun = begin(EditsUse::kTogether, &message);
    ASSERT_TRUE(std::holds_alternative<Refusal>(begun));
    EXPECT_EQ(std::get<Refusal>(begun).reason, reason);
    EXPECT_EQ(std::get<Refusal>(begun).field, "position");
    EXPECT_EQ(std::get<Refusal>(begun).limit, limit);
  };
  ASSERT_NO_FATAL_FAILURE(expect_refused(Reason::kTooMany, absl::StrCat("max_piece_work ", kMaxPieceWork)));
  for (Bill* bill : {&message, static_cast<Bill*>(nullptr)}) {
    message.BeginRow();
    auto begun = begin(bill != nullptr ? EditsUse::kInTurn : EditsUse::kTogether, bill);
    ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
    EXPECT_EQ(std::get<StepGrant>(begun).views.size(), 65u);
    sequence_.Abort(std::get<StepGrant>(begun).ticket);
  }
  // A row after others may come again alone.
  while (message.spent() < kMaxMessageWork) {
    message.BeginRow();
    message.Take(kMaxPieceWork);
  }
  ASSERT_NO_FATAL_FAILURE(expect_refused(Reason::kOverloaded, absl::StrCat("max_message_work ", kMaxMessageWork)));
}

TEST_F(SequenceRules, ForkContinuesFromAnyKeptPosition) {
  const RowResult drawn = Run(Intent(1, 3, hash_), 42);
  auto spec = std::make_shared<SequenceSpec>(*spec_);
  spec->choice_index = 1;
  spec->seed = 10;
  for (const uint32_t position : {4u, 3u, 1u, 0u}) {
    auto forked = Fork(owner_, spec, position);
    ASSERT_TRUE(std::holds_alternative<std::unique_ptr<Text>>(forked));
    const auto& state = std::get<std::unique_ptr<Text>>(forked);
    const std::vector<uint32_t> tokens = {1, 2, 3, 42};
    const auto built = Text::Build(spec, std::span(tokens).first(position), std::min(position, 3u), kKept);
    EXPECT_EQ(state->history_hash(), built->history_hash());
    EXPECT_EQ(*state->LendEdits(), *built->LendEdits());
  }
  const auto why_not = [&](const SequenceOwner& owner, std::optional<uint32_t> position) {
    auto forked = Fork(owner, spec, position);
    return std::holds_alternative<Refusal>(forked) ? std::get<Refusal>(forked).reason : Reason::kMalformedMessage;
  };
  EXPECT_EQ(why_not(owner_, 5), Reason::kHistoryRequired);
  EXPECT_EQ(why_not({9, 1}, 3), Reason::kSuperseded);
  auto begun = sequence_.Begin(owner_, Intent(2, 4, drawn.history_hash));
  EXPECT_EQ(why_not(owner_, std::nullopt), Reason::kStepInFlight);
  sequence_.Abort(std::get<StepGrant>(begun).ticket);
  ASSERT_FALSE(Retire(sequence_).has_value());
  EXPECT_EQ(why_not(owner_, std::nullopt), Reason::kHistoryRequired);
}

TEST_F(SequenceRules, FailedStepRestoresStateBeforeRewrites) {
  const RowResult drawn = Run(Intent(1, 3, hash_), 42);
  StepIntent rewrite = Intent(2, 4, HashWith({50}));
  rewrite.truncate_to = 3;
  rewrite.append_tokens = {50};
  auto begun = sequence_.Begin(owner_, rewrite);
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  sequence_.Abort(std::get<StepGrant>(begun).ticket);
  Run(Intent(3, 4, drawn.history_hash), 1);
}

TEST_F(SequenceRules, HighestEpochOwnsLoserChangesNothing) {
  const SequenceOwner newer{11, 2};
  auto begun = sequence_.Begin(owner_, Intent(1, 3, hash_));
  const uint64_t ticket = std::get<StepGrant>(begun).ticket;
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, newer, spec_, nullptr)));
  // The former owner's result comes too late, and its next steps are refused.
  ExpectRefusal(sequence_.Commit(ticket, Token(42)), Reason::kSuperseded);
  EXPECT_EQ(WhyNot(owner_, Intent(2, 3, hash_)), Reason::kSuperseded);
  for (const SequenceOwner& loser : {owner_, SequenceOwner{11, 3}}) {
    auto prompt = Prompt();
    auto taken = TakeOver(sequence_, loser, spec_, &prompt);
    EXPECT_NE(prompt, nullptr) << "taken although refused";
    EXPECT_EQ(ExpectRefusal(taken, Reason::kSuperseded).limit, "> 11");
  }
  auto fresh = sequence_.Begin(newer, Intent(1, 3, hash_));
  ASSERT_TRUE(std::holds_alternative<StepGrant>(fresh));
  EXPECT_TRUE(std::holds_alternative<RowResult>(sequence_.Commit(std::get<StepGrant>(fresh).ticket, Token(42))));
}

TEST_F(SequenceRules, LostReplyIsRepeatedToNextStream) {
  const StepIntent intent = Intent(1, 3, hash_);
  Run(intent, 42);
  const SequenceOwner next{11, 2};
  auto taken = TakeOver(sequence_, next, spec_, nullptr);
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(taken));
  EXPECT_EQ(std::get<SequencePosition>(taken).last_step_id, 1u);
  auto again = sequence_.Begin(next, intent);
  ASSERT_TRUE(std::holds_alternative<RepeatedResult>(again));
  EXPECT_EQ(std::get<RepeatedResult>(again).result->outputs[0].token, 42u);
}

TEST_F(SequenceRules, StateOfOtherOptionsIsNotKept) {
  for (auto change :
       {+[](SequenceSpec& s) { s.seed = 1; }, +[](SequenceSpec& s) { s.repetition_penalty = 2; },
        +[](SequenceSpec& s) { s.listed_edits = {{.token = 1, .flags = kernels::LogitEdit::kBanned}}; }}) {
    Sequence sequence(owner_, spec_, 64);
    auto prompt = Prompt();
    ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence, owner_, spec_, &prompt)));
    auto other = Spec();
    change(*other);
    ExpectRefusal(TakeOver(sequence, {11, 2}, other, nullptr), Reason::kHistoryRequired);
  }
}

TEST_F(SequenceRules, AnswerOfOtherOptionsIsNotRepeated) {
  const StepIntent intent = Intent(1, 3, hash_);
  Run(intent, 42);
  auto other = Spec();
  other->parameters.top_k = 5;
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(TakeOver(sequence_, {11, 2}, other, nullptr)));
  ExpectRefusal(sequence_.Begin({11, 2}, intent), Reason::kHistoryRequired);
}

// To destroy a long history takes long, and others wait for the lock meanwhile.
TEST_F(SequenceRules, StateIsDestroyedOutsideOfTheLock) {
  for (const auto end :
       {+[](Sequence&sequence, std::unique_ptr<Text> other) {
          EXPECT_EQ(TakeOver(sequence, {11, 2}, Spec(), &other).index(), 0u);
        },
        +[](Sequence&sequence, std::unique_ptr<Text>) {
          auto spec = Spec();
          spec->seed = 1;
          EXPECT_EQ(TakeOver(sequence, {11, 2}, spec, nullptr).index(), 1u);
        },
        +[](Sequence&sequence, std::unique_ptr<Text>) { EXPECT_FALSE(Retire(sequence).has_value()); }}) {
    Sequence sequence(owner_, spec_, kKept);
    bool is_free = false;
    std::unique_ptr<Text> rest;
    std::shared_ptr<const SequenceSpec> spec(new SequenceSpec(*spec_), [&](const SequenceSpec* gone) {
      is_free = sequence.RetireIfIdle(&rest);
      delete gone;
    });
    auto state = Text::Build(std::move(spec), std::vector<uint32_t>{1, 2, 3}, 3, kKept);
    EXPECT_EQ(TakeOver(sequence, owner_, spec_, &state).index(), 0u);
    end(sequence, Prompt());
    EXPECT_TRUE(is_free);
  }
}

TEST_F(SequenceRules, RetiredSequenceAsksForReplay) {
  const RowResult first = Run(Intent(1, 3, hash_), 42);
  auto begun = sequence_.Begin(owner_, Intent(2, 4, first.history_hash));
  ASSERT_FALSE(Retire(sequence_).has_value());
  ExpectRefusal(sequence_.Commit(std::get<StepGrant>(begun).ticket, Token(1)), Reason::kStepCancelled);
  EXPECT_EQ(WhyNot(owner_, Intent(2, 4, first.history_hash)), Reason::kHistoryRequired);
}

}  // namespace
}  // namespace sortition::service::sequence_rules_test
