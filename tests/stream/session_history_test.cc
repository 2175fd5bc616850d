// Histories that an open carries: whole, in pieces, wrong, and too long.

#include <bit>

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "service/text/history/history_hash.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_history_test {
namespace {

class SessionHistory : public ::testing::Test {
 protected:
  static v1::OpenSequence Piece(const v1::OpenSequence& whole, int from, int to, bool continues) {
    v1::OpenSequence piece = whole;
    piece.mutable_history()->clear_tokens();
    for (int i = from; i < to; ++i) piece.mutable_history()->add_tokens(whole.history().tokens(i));
    piece.mutable_history()->set_offset(static_cast<uint32_t>(from));
    piece.mutable_history()->set_continues(continues);
    return piece;
  }
  static v1::OpenSequence Long(std::string_view request_id, uint64_t epoch, int tokens) {
    v1::OpenSequence open = StatefulOpen(request_id, epoch);
    open.mutable_history()->clear_tokens();
    for (int i = 0; i < tokens; ++i) open.mutable_history()->add_tokens(static_cast<uint32_t>(i * 7 % 64));
    return open;
  }
  // A piece that is not answered.
  void SendSilently(const v1::OpenSequence& piece) {
    worker().Send(testing::Message(piece));
    EXPECT_EQ(worker().sink().size(), 0u);
  }
  void ExpectOpened(const v1::OpenedState& state, const v1::OpenSequence& whole) {
    const PlainSequence plain(whole);
    EXPECT_EQ(state.position(), plain.position());
    EXPECT_EQ(state.history_hash(), plain.hash());
  }
  // Sends a step whose rows each append 4,000 tokens to an indexed history, and has the first piece of it taken.
  // Returns the opens of the sequences.
  static constexpr int kRewrites = 8;
  std::vector<v1::OpenSequence> BeginRewrites() {
    std::vector<v1::OpenSequence> opens;
    StepBuilder step(1, kStatefulVocabulary);
    for (int i = 0; i < kRewrites; ++i) {
      v1::OpenSequence& open = opens.emplace_back(StatefulOpen(absl::StrCat("row-", i), 1));
      open.mutable_parameters()->mutable_dry()->set_multiplier(0.01f);
      worker().MustOpen(open);
      PlainSequence plain(open);
      for (uint32_t token = 0; token < 4000; ++token) plain.Append(token % 7);
      v1::StepRow& row = AddPeak(&step, open.request_id(), 1, plain, 20);
      for (uint32_t token = 0; token < 4000; ++token) row.add_append_tokens(token % 7);
    }
    worker().Begin(step.Build());
    return opens;
  }
  StreamWorker& worker() {
    if (!engine_) engine_.emplace(TestEngine::OnCpu(limits_));
    if (!worker_) worker_ = std::make_unique<StreamWorker>(engine_->get());
    return *worker_;
  }

  Limits limits_;
  std::optional<TestEngine> engine_;
  std::unique_ptr<StreamWorker> worker_;
};

TEST_F(SessionHistory, PiecesEqualWhole) {
  const v1::OpenSequence whole = Long("a", 1, 100);
  SendSilently(Piece(whole, 0, 30, true));
  SendSilently(Piece(whole, 30, 30, true));
  SendSilently(Piece(whole, 30, 99, true));
  ExpectOpened(worker().MustOpen(Piece(whole, 99, 100, false)), whole);
  // The penalties see all of it: the same step as the plain sequence's.
  const PlainSequence plain(whole);
  std::mt19937_64 random(9);
  const std::string logits = RandomLogits(kernels::DType::kF32, kStatefulVocabulary, &random);
  StepBuilder step(1, kStatefulVocabulary);
  step.AddRow("a", 1, plain.position(), logits).set_history_hash(plain.hash());
  EXPECT_EQ(worker().Run(step.Build()).at(0).draw().token(), plain.Draw({.logits = logits}).token());
}

// Pieces let a shell serve other streams in between.
TEST_F(SessionHistory, LongHistoryIsTakenInPieces) {
  const v1::OpenSequence whole = Long("a", 1, 24'000);
  worker().Begin(testing::Message(whole));
  Session& session = worker().session();
  int pieces = 1;
  for (; worker().sink().size() == 0; ++pieces) {
    ASSERT_GT(session.back_off(), absl::ZeroDuration());
    session.Continue();
  }
  EXPECT_EQ(pieces, 3);
  const auto opened = worker().Await([](const v1::StreamResponse& response) { return response.has_opened(); });
  ASSERT_TRUE(opened);
  ExpectOpened(opened->opened().state(), whole);
  // The next message waits for the back-off of the last piece, and no other work is left.
  EXPECT_GT(session.back_off(), absl::ZeroDuration());
  session.Continue();
  EXPECT_EQ(session.back_off(), absl::ZeroDuration());
  EXPECT_EQ(worker().sink().size(), 0u);
}

// So is the list of edits that follows from a history of many different tokens.
TEST_F(SessionHistory, LongListOfEditsIsMadeInPieces) {
  constexpr uint32_t kTokens = 200'000;
  v1::OpenSequence whole = MakeOpen("a", 1, kTokens);
  whole.mutable_parameters()->set_frequency_penalty(0.5f);
  for (uint32_t token = 0; token < kTokens; ++token) whole.mutable_history()->add_tokens(token);
  worker().Begin(testing::Message(whole));
  Session& session = worker().session();
  int pieces = 1;
  for (; session.back_off() > absl::ZeroDuration(); ++pieces) session.Continue();
  EXPECT_EQ(pieces, 29);  // the message is read, then 25 of the history, the last of which begins the list
  const auto opened = worker().Await([](const v1::StreamResponse& response) { return response.has_opened(); });
  ASSERT_TRUE(opened);
  ExpectOpened(opened->opened().state(), whole);
}

TEST_F(SessionHistory, RefusedLongHistoryHasOneAnswer) {
  limits_.max_history = 20'000;
  const v1::OpenSequence other = Long("b", 1, 100);
  SendSilently(Piece(other, 0, 90, true));
  // The unfinished histories together are too long, which shows at the last piece.
  const v1::OpenSequence whole = Long("a", 1, 20'000);
  ExpectError(worker().Open(whole).error(), Reason::kTooMany, "open.history.tokens");
  ExpectOpened(worker().MustOpen(Piece(other, 90, 100, false)), other);
  ExpectOpened(worker().MustOpen(whole), whole);
}

TEST_F(SessionHistory, PromptIsThatOfFirstPiece) {
  v1::OpenSequence whole = Long("a", 1, 10);
  whole.mutable_history()->set_prompt_length(8);
  SendSilently(Piece(whole, 0, 5, true));
  v1::OpenSequence last = Piece(whole, 5, 10, false);
  last.mutable_history()->set_prompt_length(1);
  ExpectOpened(worker().MustOpen(last), whole);
  // After a truncation the remaining part of the prompt is the prompt.
  PlainSequence plain(whole);
  plain.TruncateTo(7);
  StepBuilder step(1, kStatefulVocabulary);
  AddPeak(&step, "a", 1, plain, 5).set_truncate_to(7);
  EXPECT_EQ(worker().Run(step.Build()).at(0).draw().token(), 5u);
}

TEST_F(SessionHistory, PiecesOfSeveralSequencesMayAlternate) {
  const v1::OpenSequence a = Long("a", 1, 50);
  const v1::OpenSequence b = Long("b", 1, 40);
  SendSilently(Piece(a, 0, 20, true));
  SendSilently(Piece(b, 0, 10, true));
  SendSilently(Piece(a, 20, 40, true));
  ExpectOpened(worker().MustOpen(Piece(b, 10, 40, false)), b);
  ExpectOpened(worker().MustOpen(Piece(a, 40, 50, false)), a);
}

TEST_F(SessionHistory, PiecesMustFollowOneAnother) {
  const v1::OpenSequence whole = Long("a", 1, 50);
  ExpectError(worker().Open(Piece(whole, 5, 10, true)).error(), Reason::kContradiction, "open.history.offset");
  // The refused history is answered once: later pieces are silent.
  SendSilently(Piece(whole, 10, 20, true));
  SendSilently(Piece(whole, 20, 50, false));
  ExpectError(worker().Open(Piece(whole, 5, 10, false)).error(), Reason::kContradiction, "open.history.offset");
  for (const auto& [from, limit] : {std::pair{21, "20"}, std::pair{19, "20"}, std::pair{45, "20"}}) {
    SendSilently(Piece(whole, 0, 20, true));
    const v1::Error error = worker().Open(Piece(whole, from, 50, false)).error();
    ExpectError(error, Reason::kContradiction, "open.history.offset");
    EXPECT_EQ(error.limit(), limit);
    // The pieces so far are gone.
    ExpectError(worker().Open(Piece(whole, 20, 50, false)).error(), Reason::kContradiction, "open.history.offset");
  }
  SendSilently(Piece(whole, 0, 20, true));
  ExpectOpened(worker().MustOpen(Piece(whole, 20, 50, false)), whole);
}

TEST_F(SessionHistory, PiecesOfOtherEpochsDoNotMix) {
  const v1::OpenSequence whole = Long("a", 1, 50);
  SendSilently(Piece(whole, 0, 20, true));
  v1::OpenSequence later = Piece(whole, 20, 50, false);
  later.set_epoch(2);
  ExpectError(worker().Open(later).error(), Reason::kContradiction, "open.history.offset");
}

TEST_F(SessionHistory, OffsetZeroRestarts) {
  const v1::OpenSequence whole = Long("a", 1, 50);
  SendSilently(Piece(whole, 0, 20, true));
  SendSilently(Piece(whole, 0, 30, true));
  ExpectOpened(worker().MustOpen(Piece(whole, 30, 50, false)), whole);
  SendSilently(Piece(whole, 0, 20, true));
  ExpectOpened(worker().MustOpen(whole), whole);
  ExpectError(worker().Open(Piece(whole, 20, 50, false)).error(), Reason::kContradiction, "open.history.offset");
}

// A later piece that narrowed the vocabulary would leave tokens in the state that the kernels must never see.
TEST_F(SessionHistory, PiecesShareTheLiveVocabulary) {
  v1::OpenSequence whole = Long("a", 1, 50);
  SendSilently(Piece(whole, 0, 49, true));
  v1::OpenSequence last = Piece(whole, 49, 50, false);
  last.set_live_vocabulary_size(whole.history().tokens(49) + 1);
  ExpectError(worker().Open(last).error(), Reason::kContradiction, "open.live_vocabulary_size");
  SendSilently(Piece(whole, 0, 49, true));
  last = Piece(whole, 49, 50, false);
  last.set_vocabulary_size(kStatefulVocabulary + 1);
  last.set_live_vocabulary_size(kStatefulVocabulary);
  EXPECT_EQ(worker().MustOpen(last).position(), 50u);
}

TEST_F(SessionHistory, PromptIsWithinWhole) {
  v1::OpenSequence whole = Long("a", 1, 50);
  whole.mutable_history()->set_prompt_length(51);
  SendSilently(Piece(whole, 0, 20, true));
  ExpectError(worker().Open(Piece(whole, 20, 50, false)).error(), Reason::kOutOfRange, "open.history.prompt_length");
  ExpectError(worker().Open(whole).error(), Reason::kOutOfRange, "open.history.prompt_length");
}

TEST_F(SessionHistory, BoundedAcrossPiecesOfAStream) {
  limits_.max_history = 60;
  const v1::OpenSequence a = Long("a", 1, 60);
  const v1::OpenSequence b = Long("b", 1, 60);
  SendSilently(Piece(a, 0, 40, true));
  ExpectError(worker().Open(Piece(b, 0, 30, true)).error(), Reason::kTooMany, "open.history.tokens");
  SendSilently(Piece(b, 0, 20, true));
  // A history that comes whole is not held and does not count.
  v1::OpenSequence c = Long("c", 1, 60);
  ExpectOpened(worker().MustOpen(c), c);
  // The refused piece took no memory, and a refused history gives its memory back.
  ExpectError(worker().Open(Piece(a, 40, 60, false)).error(), Reason::kTooMany, "open.history.tokens");
  ExpectOpened(worker().MustOpen(Piece(b, 20, 60, false)), b);
  // A history that is whole makes room for the next.
  SendSilently(Piece(a, 0, 40, true));
  ExpectOpened(worker().MustOpen(Piece(a, 40, 60, false)), a);
}

TEST_F(SessionHistory, BadPieceIsAnsweredOnce) {
  const v1::OpenSequence whole = Long("a", 1, 50);
  const auto spoil = [](v1::OpenSequence piece) {
    piece.mutable_history()->set_tokens(0, 1000);
    return piece;
  };
  SendSilently(Piece(whole, 0, 10, true));
  ExpectError(worker().Open(spoil(Piece(whole, 10, 20, true))).error(), Reason::kOutOfRange, "open.history.tokens[0]");
  SendSilently(spoil(Piece(whole, 20, 30, true)));
  SendSilently(Piece(whole, 30, 50, false));
  // A new attempt is heard, whether it starts anew or names another epoch.
  ExpectError(worker().Open(spoil(Piece(whole, 0, 10, true))).error(), Reason::kOutOfRange, "open.history.tokens[0]");
  SendSilently(Piece(whole, 0, 10, true));
  ExpectOpened(worker().MustOpen(Piece(whole, 10, 50, false)), whole);
  ExpectError(worker().Open(spoil(Piece(whole, 0, 10, true))).error(), Reason::kOutOfRange, "open.history.tokens[0]");
  v1::OpenSequence later = Piece(whole, 10, 20, false);
  later.set_epoch(2);
  ExpectError(worker().Open(later).error(), Reason::kContradiction, "open.history.offset");
}

// Histories have a separate budget, below the steps'. A client that must wait is told the time.
TEST_F(SessionHistory, LongHistoriesWaitForBudget) {
  limits_.replay_tokens_per_second = 100'000;
  const v1::OpenSequence first = Long("first", 1, 20'000);
  ExpectOpened(worker().MustOpen(first), first);
  const v1::OpenSequence second = Long("second", 1, 20'000);
  const v1::Error full = worker().Open(Piece(second, 0, 10'000, true)).error();
  ExpectError(full, Reason::kOverloaded, "open.history");
  EXPECT_GE(full.retry_after().seconds() * 1'000'000'000 + full.retry_after().nanos(), 200'000'000);
  SendSilently(Piece(second, 10'000, 20'000, false));
  // Short ones are taken, and steps are answered.
  const v1::OpenSequence small = Long("small", 1, 100);
  ExpectOpened(worker().MustOpen(small), small);
  const PlainSequence plain(small);
  EXPECT_EQ(worker().Run(PeakStep(1, "small", 1, plain, 9)).at(0).draw().token(), 9u);
  // A worker that still has to send its history is advised of its turn first.
  const v1::Error unknown = worker().Open(Reopened(Long("third", 1, 0), 1)).error();
  ExpectError(unknown, Reason::kHistoryRequired, "open.history");
  engine_->clock().Advance(absl::Seconds(1));
  ExpectOpened(worker().MustOpen(second), second);
}

// An index costs several times as much as the tokens alone.
TEST_F(SessionHistory, IndexedHistoriesCountSeveralTimes) {
  limits_.replay_tokens_per_second = 1'000'000;
  for (const bool indexed : {false, true}) {
    v1::OpenSequence open = Long(indexed ? "indexed" : "plain", 1, 20'000);
    if (indexed) open.mutable_parameters()->set_no_repeat_ngram_size(3);
    worker().MustOpen(open);
    // 20,000 tokens take 20 ms of the budget, of which 50 ms may be used at once.
    const v1::OpenSequence next = Long(indexed ? "late" : "next", 1, 10'000);
    EXPECT_EQ(worker().Open(next).has_error(), indexed);
  }
}

TEST_F(SessionHistory, ParametersOfOpensAndForksArePriced) {
  v1::OpenSequence open = StatefulOpen("parent", 1);
  for (uint32_t i = 1; i < 1000; ++i) {
    v1::TokenSequence& phrase = *open.mutable_parameters()->add_banned_phrases();
    for (const uint32_t token : {i % 32, i / 32}) phrase.add_tokens(token);
  }
  const uint64_t price = price::kParameterByte * open.parameters().ByteSizeLong();
  worker().MustOpen(open);
  const uint64_t opened = engine_->get()->ledger().work();
  EXPECT_GE(opened, price);
  v1::StreamRequest message;
  message.mutable_fork()->set_parent_request_id("parent");
  *message.mutable_fork()->mutable_child() = open;
  message.mutable_fork()->mutable_child()->clear_history();
  message.mutable_fork()->mutable_child()->set_request_id("child");
  ASSERT_TRUE(worker().Fork(message).has_state());
  EXPECT_GE(engine_->get()->ledger().work(), opened + price);
}

// Pieces may add up to a long history. The wait advised to those that come later depends on the length known so far.
TEST_F(SessionHistory, ShortPiecesDoNotCountAsLong) {
  limits_.replay_tokens_per_second = 1000;
  const v1::OpenSequence first = Long("first", 1, 200);
  ExpectOpened(worker().MustOpen(first), first);
  for (int i = 0; i < 5; ++i) {
    const v1::OpenSequence open = Long(absl::StrCat("s", i), 1, 20);
    const v1::Error full = worker().Open(Piece(open, 0, 10, true)).error();
    ExpectError(full, Reason::kOverloaded, "open.history");
    EXPECT_EQ(full.retry_after().seconds(), 0) << i;
    SendSilently(Piece(open, 10, 20, false));
  }
}

// Empty pieces hold no tokens, but each is an entry.
TEST_F(SessionHistory, UnfinishedHistoriesAreCounted) {
  limits_.stream_sequences = 3;
  for (int i = 0; i < 3; ++i) SendSilently(Piece(Long(absl::StrCat("s", i), 1, 10), 0, 0, true));
  ExpectError(worker().Open(Piece(Long("s3", 1, 10), 0, 0, true)).error(), Reason::kTooMany, "open.history");
  // A closed sequence leaves no pieces behind.
  EXPECT_FALSE(worker().Close(testing::MakeClose("s1", 1)).has_error());
  SendSilently(Piece(Long("s3", 1, 10), 0, 0, true));
}

TEST_F(SessionHistory, UnknownHistoryIsRequired) {
  const v1::OpenSequence open = Long("a", 1, 50);
  ExpectError(worker().Open(Reopened(open, 1)).error(), Reason::kHistoryRequired, "open.history");
  worker().MustOpen(open);
  ExpectOpened(worker().MustOpen(Reopened(open, 2)), open);
}

TEST_F(SessionHistory, ChangedOptionsNeedHistoryAgain) {
  const v1::OpenSequence open = Long("a", 1, 50);
  worker().MustOpen(open);
  v1::OpenSequence changed = Reopened(open, 1);
  changed.mutable_parameters()->set_presence_penalty(0.75f);
  ExpectError(worker().Open(changed).error(), Reason::kHistoryRequired, "open.history");
  // Options that no history looks at may change.
  worker().MustOpen(open);
  changed = Reopened(open, 1);
  changed.mutable_parameters()->set_temperature(0.5f);
  ExpectOpened(worker().MustOpen(changed), open);
}

// The digest of a sequence is a chain of bijections, so that a worker can find a seed under which a narrower vocabulary
// has the hash of a wider one. The wider one's tokens must not reach the kernels all the same.
class Inverse {
 public:
  static uint64_t SeedFor(uint64_t wanted_hash, const HistoryIdentity& identity) {
    // Goes back from the last absorbed word to the seed; the words are in the order of history_hash.cc.
    const uint64_t words[] = {identity.choice_index,
                              identity.vocabulary,
                              identity.live_vocabulary,
                              std::bit_cast<uint32_t>(identity.repetition_penalty),
                              std::bit_cast<uint32_t>(identity.frequency_penalty),
                              std::bit_cast<uint32_t>(identity.presence_penalty)};
    uint64_t hash = wanted_hash;
    for (size_t i = std::size(words); i-- > 0;) hash = Unabsorb(hash) ^ words[i];
    return Unabsorb(hash) ^ Absorb(kEmptyHash, identity.law_version);
  }

 private:
  static constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15;
  static uint64_t Absorb(uint64_t hash, uint64_t word) {
    uint64_t x = (hash ^ word) + kIncrement;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  static uint64_t Unabsorb(uint64_t x) {
    x = (x ^ x >> 31 ^ x >> 62) * OddInverse(0x94d049bb133111eb);
    x = (x ^ x >> 27 ^ x >> 54) * OddInverse(0xbf58476d1ce4e5b9);
    return (x ^ x >> 30 ^ x >> 60) - kIncrement;
  }
  static uint64_t OddInverse(uint64_t a) {
    uint64_t x = a;  // right in three bits; each round doubles them
    for (int i = 0; i < 5; ++i) x *= 2 - a * x;
    return x;
  }
};

TEST_F(SessionHistory, CollidingOptionsAreDistinguished) {
  v1::OpenSequence wide = StatefulOpen("a", 1);
  wide.mutable_history()->add_tokens(kStatefulVocabulary - 1);
  worker().MustOpen(wide);
  v1::OpenSequence narrow = Reopened(wide, 1);
  narrow.set_live_vocabulary_size(10);

  HistoryIdentity identity;
  identity.law_version = wide.law_version();
  identity.seed = wide.seed();
  identity.vocabulary = identity.live_vocabulary = kStatefulVocabulary;
  identity.presence_penalty = wide.parameters().presence_penalty();
  const uint64_t hash = HistoryDigest(identity);
  identity.live_vocabulary = 10;
  identity.seed = Inverse::SeedFor(hash, identity);
  ASSERT_EQ(HistoryDigest(identity), hash);
  narrow.set_seed(identity.seed);
  ExpectError(worker().Open(narrow).error(), Reason::kHistoryRequired, "open.history");
}

// The empty history is a history.
TEST_F(SessionHistory, MayBeEmpty) {
  v1::OpenSequence open = StatefulOpen("a", 1);
  open.mutable_history()->Clear();
  const v1::OpenedState state = worker().MustOpen(open);
  EXPECT_EQ(state.position(), 0u);
  const PlainSequence plain(open);
  EXPECT_EQ(state.history_hash(), plain.hash());
  EXPECT_EQ(worker().Run(PeakStep(1, "a", 1, plain, 9)).at(0).draw().token(), 9u);
}

TEST_F(SessionHistory, StatelessSequenceRefusesIt) {
  v1::OpenSequence open = Long("a", 1, 50);
  open.clear_parameters();
  ExpectError(worker().Open(open).error(), Reason::kContradiction, "open.history");
  open.clear_history();
  const v1::OpenedState state = worker().MustOpen(open);
  EXPECT_FALSE(state.stateful());
  EXPECT_EQ(state.position(), 0u);
}

// The rows of a message that asks for much work begin in pieces, between which the thread serves other streams. Its
// answers are the same.
TEST_F(SessionHistory, StepOfMuchWorkIsTakenInPieces) {
  BeginRewrites();
  int pieces = 1;
  for (; worker().session().back_off() > absl::ZeroDuration(); ++pieces) worker().session().Continue();
  EXPECT_EQ(pieces, kRewrites);  // one row is more than a piece
  const std::vector<v1::RowResult> results = worker().Results(1, kRewrites);
  for (const v1::RowResult& result : results) EXPECT_EQ(result.draw().token(), 20u) << result.row();
}

// A stream that ends between two pieces leaves its sequences as they were.
TEST_F(SessionHistory, StreamMayEndBetweenPieces) {
  const std::vector<v1::OpenSequence> opens = BeginRewrites();
  ASSERT_GT(worker().session().back_off(), absl::ZeroDuration());
  worker().Disconnect();
  worker_ = nullptr;
  for (const v1::OpenSequence& open : opens) {
    EXPECT_EQ(worker().MustOpen(Reopened(open, 2)).position(), 3u);
    const PlainSequence plain(open);
    EXPECT_EQ(worker().Run(PeakStep(1, open.request_id(), 1, plain, 9)).at(0).draw().token(), 9u);
  }
}

// An idle sequence is evicted; its worker replays and continues as if nothing had happened.
TEST_F(SessionHistory, ReplayRestoresEvictedSequence) {
  limits_.max_sequences = 1;
  limits_.replay_guard = absl::ZeroDuration();
  v1::OpenSequence a = StatefulOpen("a", 1);
  PlainSequence plain(a);
  worker().MustOpen(a);
  EXPECT_EQ(worker().Run(PeakStep(1, "a", 1, plain, 20)).at(0).draw().token(), 20u);
  plain.Append(20);
  worker().MustOpen(StatefulOpen("b", 1));
  const v1::StreamRequest step = PeakStep(2, "a", 2, plain, 21);
  ExpectError(worker().Run(step).at(0), Reason::kHistoryRequired, "step.rows[0].request_id");
  a.mutable_history()->add_tokens(20);
  worker().MustOpen(a);
  EXPECT_EQ(worker().Run(step).at(0).draw().token(), 21u);
}

}  // namespace
}  // namespace sortition::service::session_history_test
