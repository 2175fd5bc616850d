// Receipts of a stream's sequences: a verifier agrees with every token, drawn in any way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <tuple>

#include "client/receipts/receipt_rows.h"
#include "service/memory/ring.h"
#include "service/text/cost.h"
#include "service/wire/encode_result.h"
#include "tests/receipt/receipts_fixture.h"

namespace sortition::service::session_receipts_test {
namespace {

using client::ReceiptCheck;
using ::testing::HasSubstr;
using testing::StepBuilder;

TEST_F(SessionReceipts, WorkerGetsThem) {
  Begin();
  MustOpen(Open());
  for (uint32_t i = 0; i < 300; ++i) EXPECT_TRUE(Draw(i).has_draw());
  EXPECT_EQ(Check({records_}).counts().signed_receipts, ReceiptChain::kSignedReceipts);
  Close();
  const ReceiptCheck check = Check({records_});
  EXPECT_EQ(check.counts().drawn, 300u);
  EXPECT_EQ(check.counts().signed_receipts, 300u);
  EXPECT_EQ(check.counts().ended, 1u);
  EXPECT_EQ(check.chains().begin()->second.request_id, "a");
}

// A result with receipts equals the result without, apart from the receipts.
TEST_F(SessionReceipts, AddNothingElseToResults) {
  Begin();
  MustOpen(Open());
  v1::OpenSequence plain = Open("b");
  plain.clear_receipts();
  EXPECT_TRUE(worker_->MustOpen(plain).receipt_salt().empty());
  v1::RowResult with = Draw(0), without = Draw(0, "b");
  EXPECT_FALSE(with.receipts().empty());
  EXPECT_TRUE(without.receipts().empty());
  with.clear_receipts();
  EXPECT_EQ(with.SerializeAsString(), without.SerializeAsString());
}

// Their words take as long as the options do. 65,536 bad words once took 22 milliseconds with them, in one piece.
TEST_F(SessionReceipts, LongOptionsBecomeWordsInAPiece) {
  Begin();
  v1::StreamRequest message;
  v1::OpenSequence& open = *message.mutable_open() = Open();
  constexpr uint32_t kWords = 50'000;
  open.set_vocabulary_size(kWords + 1);
  for (uint32_t token = 0; token < kWords; ++token) open.mutable_parameters()->add_bad_words()->add_tokens(token);
  const uint64_t before = engine_->get()->ledger().work();
  worker_->Begin(message);
  Session& session = worker_->session();
  int pieces = 1;
  for (; session.back_off() > absl::ZeroDuration(); ++pieces) session.Continue();
  EXPECT_EQ(pieces, 4) << "reading, options, words, open";
  const uint64_t bytes = open.parameters().ByteSizeLong();
  EXPECT_EQ(engine_->get()->ledger().work() - before,
            bytes * (price::kParameterByte + price::kReceiptByte) + kWords * price::kListedWord);
}

TEST_F(SessionReceipts, RetriedStepHasAnother) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_history()->add_tokens(3);
  open.mutable_history()->set_prompt_length(1);
  const uint64_t hash = MustOpen(open).history_hash();
  for (int i = 0; i < 2; ++i) {
    StepBuilder step(1, kModelVocabulary);
    step.AddRow("a", 1, 1, LogitsAfter({}, 1)).set_history_hash(hash);
    EXPECT_TRUE(Run(step).has_draw());
  }
  const ReceiptCheck check = Check({records_});
  EXPECT_EQ(check.counts().receipts, 2u);
  EXPECT_EQ(check.counts().drawn, 2u);
}

TEST_F(SessionReceipts, DraftsHaveOneEach) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_top_k(2);
  MustOpen(open);
  uint64_t receipts = 0, undrawn = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    const bool rejects = i % 2 == 0;
    StepBuilder step(i + 1, kModelVocabulary);
    v1::VerifyDraft& drafts = *step.AddRow("a", i + 1, 5, LogitsAfter({}, i)).mutable_verify_draft();
    drafts.set_mode(rejects ? v1::VERIFY_MODE_REJECTION : v1::VERIFY_MODE_COUPLED);
    for (uint32_t d = 0; d < 2; ++d) {
      drafts.add_draft_tokens((i * 7 + d * 3) % kModelVocabulary);
      step.AddTensorRow(LogitsAfter({}, i + d));
    }
    const v1::RowResult result = Run(step);
    ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
    const auto tokens = static_cast<uint64_t>(result.verify().positions_size());
    receipts += tokens;
    if (rejects) undrawn += tokens - (result.verify().accepted() == 2 ? 1 : 0);
  }
  const ReceiptCheck check = Check({records_});
  EXPECT_EQ(check.counts().receipts, receipts);
  EXPECT_EQ(check.counts().no_draft, undrawn);
  EXPECT_EQ(check.counts().drawn, receipts - undrawn);
}

TEST_F(SessionReceipts, ScoreHasNone) {
  Begin();
  MustOpen(Open());
  StepBuilder step(1, kModelVocabulary);
  step.AddRow("a", 1, 0, LogitsAfter({}, 1)).mutable_score()->add_tokens(2);
  const v1::RowResult result = Run(step);
  EXPECT_TRUE(result.has_score());
  EXPECT_TRUE(result.receipts().empty());
}

// An opening states what each phase's parameters became, so that a verifier needs no rule for rounding.
TEST_F(SessionReceipts, OpeningHasIntegersOfEachPhase) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_temperature(0.5f);
  v1::Phase& greedy = *open.mutable_parameters()->add_phases();
  greedy.add_begin(1), greedy.add_end(2);
  greedy.mutable_parameters()->set_temperature(0);
  v1::Phase& chained = *open.mutable_parameters()->add_phases();
  chained.add_begin(3), chained.add_end(4);
  chained.mutable_parameters()->set_typical_p(0.5f);
  chained.mutable_parameters()->set_repetition_penalty(2);
  open.mutable_history()->add_tokens(5);  // phases look at it
  open.mutable_history()->set_prompt_length(1);
  MustOpen(open);
  uint32_t length = 0;
  std::memcpy(&length, records_.data() + 1, sizeof(length));
  const auto opening = DecodeOpening(std::string_view(records_).substr(kRecordHeaderBytes, length));
  ASSERT_TRUE(opening && opening->integers.size() == 3);
  const auto& [outside, first, second] = std::tie(opening->integers[0], opening->integers[1], opening->integers[2]);
  // log2(e) / 0.5 = 1.4427 * 2: mantissa, exponent, window, bits of 0.5. Stage 2 is top-k.
  const std::vector<std::array<uint32_t, 5>> plain = {{0, 0x5c551d95, 1, 131, 0x3f000000}, {2, 9, 0, 0, 0}};
  EXPECT_EQ(outside, (ReceiptIntegers{false, 0, 0, plain}));
  EXPECT_EQ(first, (ReceiptIntegers{true, 0, 0, {}}));
  EXPECT_EQ(second.repetition, 0x40000000u);
  EXPECT_EQ(second.inverse_repetition, 0x3f000000u);
  ASSERT_EQ(second.stages.size(), 3u);  // in the order of PRESET_VLLM; stage 4 is typical-p
  EXPECT_EQ(second.stages[0], plain[0]);
  EXPECT_EQ(second.stages[2], (std::array<uint32_t, 5>{4, 0x80000000, 0, 0, 0}));
}

// A receipt contains no token of the prompt and no secret.
TEST_F(SessionReceipts, HoldNoSecrets) {
  Begin();
  v1::OpenSequence open = Open();
  constexpr uint64_t kSeed = 0x1122334455667788, kKey = 0x99aabbccddeeff01;
  open.set_seed(kSeed);
  open.mutable_parameters()->mutable_watermark()->set_key(kKey);
  for (int i = 0; i < 40; ++i) open.mutable_history()->add_tokens(45);
  open.mutable_history()->set_prompt_length(40);
  const uint64_t hash = MustOpen(open).history_hash();
  StepBuilder step(1, kModelVocabulary);
  step.AddRow("a", 1, 40, LogitsAfter({}, 1)).set_history_hash(hash);
  Run(step);
  Close();
  EXPECT_EQ(Check({records_}).counts().watermarked, 1u);
  const auto holds = [&](const void* bytes, size_t size) {
    return records_.find(std::string(static_cast<const char*>(bytes), size)) != std::string::npos;
  };
  EXPECT_TRUE(holds(&hash, sizeof(hash)));
  const uint32_t prompt[] = {45, 45};
  EXPECT_FALSE(holds(&kSeed, sizeof(kSeed)) || holds(&kKey, sizeof(kKey)) || holds(prompt, sizeof(prompt)));
}

TEST_F(SessionReceipts, SaltOfWorkerIsUsed) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_receipts()->set_salt("0123456789abcdef");
  EXPECT_EQ(MustOpen(open).receipt_salt(), "0123456789abcdef");
  Draw(0);
  EXPECT_EQ(Check({records_}).counts().drawn, 1u);
  open.mutable_receipts()->set_salt("short");
  const v1::SequenceOpened refused = worker_->Open(open);
  EXPECT_EQ(refused.error().reason(), v1::OUT_OF_RANGE);
  EXPECT_EQ(refused.error().field(), "open.receipts.salt");
}

TEST_F(SessionReceipts, ServerWithoutKeyRefuses) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  const v1::SequenceOpened refused = worker.Open(Open());
  EXPECT_EQ(refused.error().reason(), v1::NOT_IMPLEMENTED);
  EXPECT_EQ(refused.error().field(), "open.receipts");
}

TEST_F(SessionReceipts, FilesHoldWhatWorkersGet) {
  Begin(ToFiles());
  MustOpen(Open());
  for (uint32_t i = 0; i < 20; ++i) Draw(i);
  Close();
  End();
  const ReceiptCheck check = Check(folder_.Files());
  EXPECT_EQ(check.counts().drawn, 20u);
  EXPECT_EQ(check.counts().signed_receipts, 20u);
  EXPECT_EQ(check.counts().ended, 1u);
  EXPECT_EQ(counts_[Counter::kReceiptsMade], 20u);
  EXPECT_EQ(counts_[Counter::kReceiptsWritten], 20u);
}

// The operator's own files: workers do not request receipts, and get only the salt.
TEST_F(SessionReceipts, OperatorRecordsAll) {
  ReceiptSettings settings = ToFiles();
  settings.all = true;
  Begin(settings);
  v1::OpenSequence open = Open();
  open.clear_receipts();
  EXPECT_TRUE(MustOpen(open).receipts().empty());
  EXPECT_TRUE(Draw(0).receipts().empty());
  End();
  const ReceiptCheck check = Check(folder_.Files());
  EXPECT_EQ(check.counts().drawn, 1u);
  EXPECT_EQ(check.counts().signed_receipts, 1u);
}

TEST_F(SessionReceipts, FilesRotate) {
  ReceiptSettings settings = ToFiles();
  settings.file_bytes = 2000;
  Begin(settings);
  MustOpen(Open());
  for (uint32_t i = 0; i < 60; ++i) {
    Draw(i);
    EXPECT_TRUE(book_->Flush().ok());
  }
  End();
  const std::vector<std::string> files = folder_.Files();
  EXPECT_GE(files.size(), 4u);
  const ReceiptCheck check = Check(files);
  EXPECT_EQ(check.counts().drawn, 60u);
  EXPECT_EQ(check.counts().signed_receipts, 60u);
  // Each one can be checked alone.
  for (const std::string& file : files) EXPECT_GT(Check({file}).counts().drawn, 0u);
}

// 64 accepted drafts with long kept sets: once one message of 2.1 MB, which no ring takes.
TEST_F(SessionReceipts, LongReceiptsComeInParts) {
  constexpr uint32_t kWide = kMaxReceiptTokens + 100;
  Begin();
  v1::OpenSequence open = Open();
  open.set_vocabulary_size(kWide);
  open.mutable_parameters()->set_top_k(kMaxReceiptTokens);
  MustOpen(open);
  std::vector<float> logits(kWide);
  logits[7] = 30;
  StepBuilder step(1, kWide);
  v1::StepRow& row = step.AddRow("a", 1, 0, testing::F32Bytes(logits));
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
    row.mutable_verify_draft()->add_draft_tokens(7);
    step.AddTensorRow(testing::F32Bytes(logits));
  }
  worker_->Send(step.Build());
  v1::RowResult whole;
  for (bool continues = true; continues;) {
    const auto response = worker_->Await([](const v1::StreamResponse& message) { return message.has_results(); });
    ASSERT_TRUE(response);
    EXPECT_LE(response->ByteSizeLong(), kMostRingMessageBytes);
    for (const v1::RowResult& part : response->results().rows()) {
      EXPECT_LE(part.receipts().size(), kPartReceiptBytes);
      testing::AppendPart(part, &whole);
      continues = Continues(part);
    }
  }
  EXPECT_EQ(whole.verify().accepted(), kMaxDraftTokens);
  EXPECT_GT(whole.receipts().size(), kMostRingMessageBytes);
  records_ += whole.receipts();
  Close();
  EXPECT_EQ(Check({records_}).counts().signed_receipts, kMaxDraftTokens + 1);
}

// A sequence's parameters make its opening long, and a fork's.
TEST_F(SessionReceipts, LongOpeningComesInParts) {
  Begin();
  v1::OpenSequence open = Open();
  open.set_vocabulary_size(70'000);
  for (uint32_t id = 0; id < Limits().max_listed_tokens; ++id) {
    v1::LogitBias& bias = *open.mutable_parameters()->add_logit_bias();
    bias.set_token(id);
    bias.set_bias(1);
    open.mutable_parameters()->add_stop_token_ids(id);
  }
  const v1::OpenedState state = MustOpen(open);
  EXPECT_GT(state.receipts().size(), kMostRingMessageBytes);
  v1::StreamRequest fork;
  fork.mutable_fork()->set_parent_request_id("a");
  *fork.mutable_fork()->mutable_child() = open;
  fork.mutable_fork()->mutable_child()->set_request_id("b");
  worker_->Send(fork);
  std::string forked;
  for (bool continues = true; continues;) {
    const auto response = worker_->Await([](const v1::StreamResponse& message) { return message.has_forked(); });
    ASSERT_TRUE(response && response->forked().has_state());
    EXPECT_LE(response->ByteSizeLong(), kMostRingMessageBytes);
    forked += response->forked().state().receipts();
    continues = response->forked().state().continues();
  }
  EXPECT_EQ(forked.size(), state.receipts().size());
  Close();
  Check({records_});
}

TEST_F(SessionReceipts, KeyRotates) {
  Begin();
  const ReceiptPublicKey old_key = folder_.public_key();
  MustOpen(Open());
  Draw(0);
  folder_.WriteKey();
  book_->files().Look();
  Close();
  EXPECT_NE(old_key, folder_.public_key());
  EXPECT_EQ(Check({records_}).counts().signed_receipts, 1u);
}

TEST_F(SessionReceipts, UnreadableKeyKeepsTheOld) {
  Begin();
  const ReceiptPublicKey key = folder_.public_key();
  std::ofstream(folder_.key_file()) << "no key";
  book_->files().Look();
  MustOpen(Open());
  Draw(0);
  Close();
  ReceiptCheck check({{key}, {}});
  check.Read(records_);
  check.Finish();
  EXPECT_EQ(check.counts().signed_receipts, 1u);
  const auto started = ReceiptBook::Start(settings_, &counts_, &log_);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("--receipt_key: " + folder_.key_file()));
}

// A limit on the sizes of files, which this process sets for itself, stands for a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(SessionReceipts, FullDiskLosesNoStep) {
  Begin(ToFiles());
  MustOpen(Open());
  Draw(0);
  ASSERT_TRUE(book_->Flush().ok());
  {
    FullDisk full(folder_.Files()[0].size() + 10);
    EXPECT_TRUE(Draw(1).has_draw());
    const absl::Status status = book_->Flush();
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder_.path()));
    EXPECT_TRUE(Draw(2).has_draw());
    EXPECT_FALSE(book_->Flush().ok());
  }
  EXPECT_TRUE(book_->Flush().ok());
  End();
  EXPECT_EQ(Check(folder_.Files()).counts().drawn, 3u);
  EXPECT_EQ(counts_[Counter::kReceiptsLost], 0u);
}

TEST_F(SessionReceipts, RequiredOnesStopRows) {
  ReceiptSettings settings = ToFiles();
  settings.required = true;
  Begin(settings);
  MustOpen(Open());
  Draw(0);
  ASSERT_TRUE(book_->Flush().ok());
  {
    FullDisk full(folder_.Files()[0].size() + 10);
    EXPECT_TRUE(Draw(1).has_draw());
    EXPECT_FALSE(book_->Flush().ok());
    const v1::RowResult refused = Draw(2);
    EXPECT_EQ(refused.error().reason(), v1::RECEIPTS_NOT_WRITTEN);
    EXPECT_EQ(refused.error().field(), "step.rows[0]");
    EXPECT_GT(refused.error().retry_after().seconds(), 0);
  }
  EXPECT_TRUE(book_->Flush().ok());
  EXPECT_TRUE(Draw(2).has_draw());
  End();
  EXPECT_EQ(Check(folder_.Files()).counts().drawn, 3u);
}

TEST_F(SessionReceipts, FullQueueLosesReceiptsAndCounts) {
  ReceiptSettings settings = ToFiles();
  settings.queue_bytes = 700;
  Begin(settings);
  MustOpen(Open());
  {
    FullDisk full(0);
    for (uint32_t i = 0; i < 10; ++i) EXPECT_TRUE(Draw(i).has_draw());
    EXPECT_FALSE(book_->Flush().ok());
  }
  EXPECT_TRUE(book_->Flush().ok());
  End();
  EXPECT_GT(counts_[Counter::kReceiptsLost], 0u);
  EXPECT_EQ(counts_[Counter::kReceiptsLost] + counts_[Counter::kReceiptsWritten], 10u);
}

}  // namespace
}  // namespace sortition::service::session_receipts_test
