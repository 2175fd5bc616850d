// The work of steps: the ledger has the price of all that a row asks for, long steps are taken in pieces, and a row of
// too much work is refused by name, or sent whole.

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "tests/stream/compact_fixture.h"

namespace sortition::service::session_costs_test {
namespace {

constexpr uint32_t kVocabulary = 70'000;
constexpr uint32_t kBanned = 60'000;

class SessionCosts : public CompactFixture {
 protected:
  // Opens a sequence without state, which takes the last token and has `banned` edits.
  void Open(const std::string& name, uint32_t banned) {
    v1::OpenSequence open = MakeOpen(name, 1, kVocabulary);
    open.mutable_parameters()->set_temperature(0);
    for (uint32_t token = 0; token < banned; ++token) open.mutable_parameters()->add_banned_token_ids(token);
    compact_.MustOpen(open);
  }

  static std::string Logits() { return F32Peak(kVocabulary, kVocabulary - 1); }

  // Returns a step of compact rows that list one token and score the last one `positions` times, for sequences "0" on.
  static v1::StreamRequest CompactScores(int rows, int positions) {
    StepBuilder builder(1, kVocabulary);
    for (int i = 0; i < rows; ++i) builder.AddRow(absl::StrCat(i), 1, 0, Logits());
    const std::vector<std::optional<CompactChoice>> choices(static_cast<size_t>(rows),
                                                            CompactChoice{PlainRowParameters({}), kVocabulary, 1});
    v1::StreamRequest message = WithCompactRows(builder.Build(), choices);
    for (v1::StepRow& row : *message.mutable_step()->mutable_rows()) {
      const v1::CompactRow compact = row.compact(0);
      row.clear_compact();
      for (int i = 0; i < positions; ++i) {
        row.mutable_score()->add_tokens(kVocabulary - 1);
        *row.add_compact() = compact;
      }
    }
    return message;
  }

  // The price of one of their positions, with kBanned edits.
  static constexpr uint64_t kPosition = price::kCompactToken + kBanned * price::kCopiedEdit;
};

TEST_F(SessionCosts, LedgerHasWhatARowAsksFor) {
  Open("0", 10);
  uint64_t step_id = 0;
  const auto expect = [&](uint64_t work, const std::function<void(StepBuilder*, v1::StepRow*)>& change) {
    StepBuilder step(1, kVocabulary);
    change(&step, &step.AddRow("0", ++step_id, 0, Logits()));
    const uint64_t before = engine_->ledger().work();
    const v1::RowResult result = RunOne(step.Build());
    EXPECT_EQ(result.draw().token(), kVocabulary - 1) << result.ShortDebugString();
    EXPECT_EQ(engine_->ledger().work() - before, price::kRow + work) << "step " << step_id;
  };
  expect(0, [](auto*, auto*) {});
  expect(2 * price::kListedToken, [](auto*, v1::StepRow* row) {
    for (const uint32_t token : {5u, kVocabulary - 1}) row->mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
  });
  expect(3 * (price::kListedToken + price::kFoundEdit) + 10 * price::kCopiedEdit, [](auto*, v1::StepRow* row) {
    for (const uint32_t token : {20u, 21u, 22u}) row->mutable_mask()->add_banned_tokens(token);
  });
  expect((kVocabulary / 32 + 1) * price::kMaskWord, [](StepBuilder* step, v1::StepRow* row) {
    row->mutable_mask()->set_mask_row(step->AddMask(std::vector<bool>(kVocabulary, true)));
  });
  const v1::StreamRequest compact = CompactScores(1, 3);
  const uint64_t before = engine_->ledger().work();
  EXPECT_TRUE(RunOne(compact).has_score());
  EXPECT_EQ(engine_->ledger().work() - before,
            price::kRow + 3 * (price::kListedToken + 2 * price::kCompactToken + 10 * price::kCopiedEdit));
  v1::StreamRequest masked = CompactScores(1, 1);
  masked.mutable_step()->mutable_rows(0)->set_step_id(20);
  v1::TokenSequence& allowed = *masked.mutable_step()->mutable_rows(0)->mutable_mask()->mutable_allowed_tokens();
  for (const uint32_t token : {20u, kVocabulary - 1}) allowed.add_tokens(token);
  const uint64_t scored = engine_->ledger().work();
  EXPECT_TRUE(RunOne(masked).has_score());
  constexpr uint64_t kSteps = 4;  // of a search among 10 edits
  EXPECT_EQ(engine_->ledger().work() - scored, price::kRow + 3 * price::kListedToken + 2 * price::kCompactToken +
                                                   10 * price::kCopiedEdit + 2 * kSteps * price::kSearchStep);
}

TEST_F(SessionCosts, RowOfTooMuchWorkIsRefusedByName) {
  Open("0", 0);
  const auto refused = [&](int positions, uint32_t allowed, uint32_t banned) {
    v1::StreamRequest message = CompactScores(1, positions);
    v1::RowMask& mask = *message.mutable_step()->mutable_rows(0)->mutable_mask();
    for (uint32_t token = 0; token < allowed; ++token) mask.mutable_allowed_tokens()->add_tokens(token);
    for (uint32_t token = 0; token < banned; ++token) mask.add_banned_tokens(token);
    const v1::RowResult result = RunOne(message);
    ExpectError(result, Reason::kTooMany, "step.rows[0]");
    EXPECT_EQ(result.error().limit(), absl::StrCat("max_piece_work ", kMaxPieceWork));
  };
  refused(1, kMaxPieceWork / price::kListedToken + 1, 0);
  constexpr int kScored = 100;
  refused(kScored, 0, kMaxPieceWork / (kScored * price::kFoundEdit));
}

TEST_F(SessionCosts, CompactPositionsBeyondAPieceAreSentWhole) {
  constexpr int kPositions = 50;
  constexpr int kDecided = kMaxPieceWork / kPosition;
  static_assert(kDecided > 1 && kDecided < kPositions);
  Open("0", kBanned);
  const v1::RowResult result = RunOne(CompactScores(1, kPositions));
  ExpectError(result, Reason::kRowRequired, absl::StrCat("step.rows[0].compact[", kDecided, "]"));
  ASSERT_EQ(result.error().required_size(), kPositions - kDecided);
  for (const v1::RequiredLogits& required : result.error().required()) {
    EXPECT_EQ(required.cause(), v1::RequiredLogits::CAUSE_ROW);
  }
}

// Other streams are served between them.
TEST_F(SessionCosts, CompactRowsRunInPieces) {
  constexpr int kRows = 3;
  constexpr int kPositions = 10;
  static_assert(kPositions * kPosition > kPieceWork);
  for (int i = 0; i < kRows; ++i) Open(absl::StrCat(i), kBanned);
  compact_.Begin(CompactScores(kRows, kPositions));
  Session& session = compact_.session();
  int pieces = 1;
  for (; session.back_off() > absl::ZeroDuration(); ++pieces) session.Continue();
  EXPECT_EQ(pieces, kRows);
  for (const v1::RowResult& result : compact_.Results(1, kRows)) EXPECT_TRUE(result.has_score()) << result.row();
}

// Reading alone takes milliseconds, so other streams come before the work.
// Their results are as long as those of the rows that ran.
TEST_F(SessionCosts, LongResultsAreRepeatedInPieces) {
  constexpr uint32_t kWidth = 20'000;
  constexpr int kRows = 40;
  StepBuilder builder(1, kWidth);
  for (int i = 0; i < kRows; ++i) {
    v1::OpenSequence open = MakeOpen(absl::StrCat(i), 1, kWidth);
    open.mutable_parameters()->set_presence_penalty(0.5f);
    open.mutable_parameters()->mutable_kept_set()->set_tokens(true);
    open.mutable_history()->set_prompt_length(0);
    const uint64_t hash = compact_.MustOpen(open).history_hash();
    builder.AddRow(absl::StrCat(i), 1, 0, std::string(kWidth * sizeof(float), 0)).set_history_hash(hash);
  }
  v1::StreamRequest step = builder.Build();
  const std::vector<v1::RowResult> first = compact_.Run(step);
  ASSERT_EQ(first.size(), static_cast<size_t>(kRows));
  step.mutable_step()->set_batch_id(2);
  const uint64_t before = engine_->ledger().work();
  compact_.Begin(step);
  Session& session = compact_.session();
  int pieces = 1;
  for (; session.back_off() > absl::ZeroDuration(); ++pieces) session.Continue();
  EXPECT_GT(pieces, 4);
  EXPECT_GE(engine_->ledger().work() - before, kRows * kWidth * sizeof(kernels::TokenBits) * price::kAnswerByte);
  const std::vector<v1::RowResult> again = compact_.Results(2, kRows);
  ASSERT_EQ(again.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].draw().kept_tokens_size(), static_cast<int>(kWidth));
    EXPECT_EQ(again[i].SerializeAsString(), first[i].SerializeAsString());
  }
  EXPECT_TRUE(compact_.IsIdle());
}

TEST_F(SessionCosts, LongMessagesPauseBeforeTheirWork) {
  Session& session = compact_.session();
  const auto begin = [&](const v1::StreamRequest& message) {
    const uint64_t before = engine_->ledger().work();
    const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
    Frame frame = std::get<Frame>(DecodeFrame(delivery.segments, delivery.bytes));
    const uint64_t read = frame.message_bytes * price::kReadByte + frame.scan.parts * price::kReadPart;
    session.BeginFrame(std::move(frame));
    EXPECT_EQ(session.back_off(), absl::Nanoseconds(read));
    EXPECT_EQ(engine_->ledger().work(), before);
    while (session.back_off() > absl::ZeroDuration()) session.Continue();
    EXPECT_GT(engine_->ledger().work(), before);
  };
  v1::StreamRequest open;
  *open.mutable_open() = MakeOpen("0", 1, kVocabulary);
  for (uint32_t token = 0; token < kBanned; ++token) {
    AddBias(token, 1, open.mutable_open()->mutable_parameters());
  }
  begin(open);
  StepBuilder step(1, kVocabulary);
  v1::RowMask& mask = *step.AddRow("0", 1, 0, Logits()).mutable_mask();
  for (uint32_t i = 1; i <= kBanned; ++i) mask.mutable_allowed_tokens()->add_tokens(kVocabulary - i);
  for (uint32_t token = 0; token < kBanned; ++token) mask.add_banned_tokens(token);
  begin(step.Build());
  const v1::RowResult result = compact_.Results(1, 1).at(0);
  EXPECT_TRUE(result.has_draw()) << result.ShortDebugString();
}

// Each phase has a copy of the lists. Eight phases once kept the thread for 350 milliseconds.
TEST_F(SessionCosts, ListsForManyPhasesAreRefusedBeforehand) {
  v1::OpenSequence open = MakeOpen("0", 1, kVocabulary);
  v1::SamplingParameters& parameters = *open.mutable_parameters();
  for (uint32_t token = 0; token < kBanned; ++token) {
    parameters.add_banned_token_ids(token);
    parameters.add_allowed_token_ids(kVocabulary - 1 - token);
    parameters.add_bad_words()->add_tokens(token);
  }
  const auto add_phase = [&] {
    v1::Phase& phase = *parameters.add_phases();
    phase.add_begin(static_cast<uint32_t>(parameters.phases_size()));
    phase.add_end(100);
    phase.mutable_parameters()->add_banned_token_ids(kVocabulary - 1);
  };
  const uint64_t before = engine_->ledger().work();
  EXPECT_FALSE(compact_.Open(open).has_error());
  EXPECT_GE(engine_->ledger().work() - before, price::kParameterByte * parameters.ByteSizeLong());
  for (uint32_t i = 0; i < kMaxPhases; ++i) add_phase();
  const uint64_t opened = engine_->ledger().work();
  open.set_request_id("1");
  const v1::Error error = compact_.Open(open).error();
  ExpectError(error, Reason::kTooMany, "open.parameters");
  EXPECT_EQ(error.limit(), absl::StrCat("max_piece_work ", kMaxPieceWork));
  EXPECT_EQ(engine_->ledger().work(), opened) << "refused before the work";
}

// Other streams are served between the two.
TEST_F(SessionCosts, LongOptionsPauseBeforeTheHistory) {
  v1::StreamRequest message;
  v1::OpenSequence& open = *message.mutable_open() = MakeOpen("0", 1, kVocabulary);
  open.mutable_parameters()->set_presence_penalty(1);
  for (uint32_t token = 0; token < kBanned; ++token) {
    v1::LogitBias& bias = *open.mutable_parameters()->add_logit_bias();
    bias.set_token(token);
    bias.set_bias(1);
  }
  open.mutable_history()->add_tokens(1);
  open.mutable_history()->set_prompt_length(1);
  const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
  Session& session = compact_.session();
  session.BeginFrame(std::get<Frame>(DecodeFrame(delivery.segments, delivery.bytes)));
  int pieces = 1;
  for (; session.back_off() > absl::ZeroDuration(); ++pieces) session.Continue();
  EXPECT_EQ(pieces, 3) << "reading, options, history";
}

// Parts take longer to read than their bytes, so a short message of many parts pauses, too.
TEST_F(SessionCosts, MessagesOfManyPartsPauseBeforeTheirWork) {
  v1::StreamRequest message;
  *message.mutable_open() = MakeOpen("0", 1, kVocabulary);
  for (int i = 0; i < 50'000; ++i) message.mutable_open()->mutable_parameters()->add_bad_words();
  ASSERT_LT(message.ByteSizeLong(), 200'000u);
  const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
  Session& session = compact_.session();
  session.BeginFrame(std::get<Frame>(DecodeFrame(delivery.segments, delivery.bytes)));
  EXPECT_GT(session.back_off(), absl::ZeroDuration());
  while (session.back_off() > absl::ZeroDuration()) session.Continue();
  const auto refused = compact_.Await([](const v1::StreamResponse& response) { return response.has_opened(); });
  ASSERT_TRUE(refused);
  ExpectError(refused->opened().error(), Reason::kMissingField, "open.parameters.bad_words[0].tokens");
}

// Single words are compared, too. 65,536 of them once counted as their bytes alone, a third of their work.
TEST_F(SessionCosts, SingleWordsHaveTheirPrice) {
  v1::OpenSequence open = MakeOpen("0", 1, kVocabulary);
  for (uint32_t token = 0; token < kBanned; ++token) {
    open.mutable_parameters()->add_bad_words()->add_tokens(token);
  }
  const uint64_t before = engine_->ledger().work();
  EXPECT_FALSE(compact_.Open(open).has_error());
  EXPECT_GE(engine_->ledger().work() - before, kBanned * price::kListedWord);
}

}  // namespace
}  // namespace sortition::service::session_costs_test
