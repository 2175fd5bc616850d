// The operator's policies on a stream: marks, receipts and limits that the worker cannot turn off.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "service/policy/policy_book.h"
#include "service/stream/sample_run.h"
#include "tests/receipt/receipts_fixture.h"

namespace sortition::service::session_policy_test {
namespace {

using ::testing::HasSubstr;
using testing::PlainSequence;

// Keeps the book's events about its files.
class PolicyEvents : public NullEventLog {
 public:
  void FileRead(FollowedFile, std::string_view why) override {
    used_.push_back(why.empty());
    why_ = why;
  }
  const std::vector<bool>& used() const { return used_; }
  const std::string& why() const { return why_; }

 private:
  std::vector<bool> used_;
  std::string why_;
};

class SessionPolicy : public ::testing::Test {
 protected:
  SessionPolicy() { WriteKeys("first 11 3\n"); }

  std::string At(const std::string& name) const { return folder_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(At(name + ".new"), std::ios::binary) << text;
    std::filesystem::rename(At(name + ".new"), At(name));
  }
  void WriteKeys(const std::string& text) { Write("keys", text); }
  // The default tenant's rules.
  void WriteRules(const std::string& rules) {
    Write("policies", R"({"policies": [{"tenant": "default", )" + rules + "}]}");
  }
  std::string Marked() const { return R"("watermark": {"keys": ")" + At("keys") + R"("})"; }

  void Begin(const std::string& rules, ReceiptBook* receipts = nullptr) {
    WriteRules(rules);
    auto book = PolicyBook::Start(At("policies"), Limits(), receipts != nullptr, &observer_, &events_);
    ASSERT_TRUE(book.ok()) << book.status();
    book_ = *std::move(book);
    engine_.emplace(testing::TestEngine::OnCpuWith(receipts, book_.get()));
    worker_.emplace(engine_->get());
  }
  void Follow() {
    now_ += absl::Seconds(2);
    book_->files().Follow(now_);
  }

  static v1::OpenSequence Open(std::string_view id = "a", uint64_t epoch = 1) {
    v1::OpenSequence open = MakeOpen(id, epoch, kModelVocabulary);
    open.set_seed(77);
    return open;
  }
  static v1::OpenSequence WithHistory(v1::OpenSequence open, const std::vector<uint32_t>& tokens, uint32_t prompt) {
    open.mutable_history()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
    open.mutable_history()->set_prompt_length(prompt);
    return open;
  }
  // The plain sequence that has the key as its own.
  static PlainSequence Plain(const v1::OpenSequence& open, uint64_t key, uint32_t width, bool skips = false) {
    v1::OpenSequence own = open;
    own.clear_watermark_key_id();
    own.mutable_parameters()->mutable_watermark()->set_key(key);
    own.mutable_parameters()->mutable_watermark()->set_context_width(width);
    if (skips) own.mutable_parameters()->mutable_watermark()->set_skip_repeated_contexts(true);
    return PlainSequence(own);
  }
  // Draws a token after `*text`, appends it, and expects the plain sequence's token.
  void Draw(uint64_t step_id, uint64_t* hash, std::vector<uint32_t>* text, PlainSequence* plain) {
    const std::string logits = LogitsAfter(*text, 1);
    StepBuilder step(step_id, kModelVocabulary);
    step.AddRow("a", step_id, static_cast<uint32_t>(text->size()), logits).set_history_hash(*hash);
    const auto results = worker_->Run(step.Build());
    ASSERT_EQ(results.size(), 1u);
    ASSERT_TRUE(results[0].has_draw()) << results[0].ShortDebugString();
    const auto right = plain->Draw({.logits = logits}, static_cast<uint32_t>(text->size()));
    EXPECT_EQ(results[0].draw().token(), right.token());
    *hash = results[0].draw().history_hash();
    plain->Append(right.token());
    text->push_back(right.token());
  }

  ReceiptFolder folder_;
  NullObserver observer_;
  PolicyEvents events_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<PolicyBook> book_;
  std::optional<testing::TestEngine> engine_;
  std::optional<StreamWorker> worker_;
};

TEST_F(SessionPolicy, MarkNeedsHistoryAndDrawsByKey) {
  Begin(Marked());
  // No option of the open needs the history; the refusal names the need.
  const v1::Error error = worker_->Open(Open()).error();
  EXPECT_EQ(error.reason(), v1::HISTORY_REQUIRED);
  EXPECT_THAT(error.message(), HasSubstr("policy marks the text"));
  std::vector<uint32_t> text = {1, 2};
  const v1::OpenSequence open = WithHistory(Open("a", 2), text, 2);
  const v1::OpenedState state = worker_->MustOpen(open);
  EXPECT_TRUE(state.stateful());
  EXPECT_EQ(state.policy().watermark_key_id(), "first");
  PlainSequence plain = Plain(open, 11, 3);
  uint64_t hash = state.history_hash();
  for (uint64_t step = 1; step <= 40; ++step) ASSERT_NO_FATAL_FAILURE(Draw(step, &hash, &text, &plain));
}

TEST_F(SessionPolicy, OptionsThatLeaveNoMarkAreRefused) {
  Begin(Marked());
  uint64_t epoch = 1;
  const auto refused = [&](const std::string& parameters) {
    v1::OpenSequence open = WithHistory(Open("a", ++epoch), {1}, 1);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(parameters, open.mutable_parameters()));
    const v1::Error error = worker_->Open(open).error();
    return error.reason() == v1::CONTRADICTION ? error.field() : v1::ErrorReason_Name(error.reason());
  };
  const std::map<std::string, std::string> fields = {
      {"temperature: 0", "temperature"},
      {"top_k: 1", "top_k"},
      {"top_k: 1 temperature: 2 chain { preset: PRESET_HF }", "top_k"},
      {"min_p: 1", "min_p"},
      {"epsilon_cutoff: 0.6", "epsilon_cutoff"},
      {"top_h: 0.01", "top_h"},
      {"top_p: 1e-6", "top_p"},
      {"allowed_token_ids: 5", "allowed_token_ids"},
      {"allowed_token_ids: [5, 6] banned_token_ids: 6", "allowed_token_ids"},
      {"phases { end: 3 parameters { temperature: 0 } }", "phases[0].parameters.temperature"},
      {"phases { end: 3 parameters { allowed_token_ids: 4 } }", "phases[0].parameters.allowed_token_ids"},
      {"top_k: 1 min_keep: 2 phases { end: 3 parameters { min_keep: 1 } }", "top_k"},
  };
  for (const auto& [parameters, field] : fields) {
    EXPECT_EQ(refused(parameters), "open.parameters." + field) << parameters;
  }
  for (const char* const parameters : {"top_k: 2", "top_k: 1 min_keep: 2", "min_p: 0.9", "allowed_token_ids: [5, 6]",
                                       "phases { end: 3 parameters { temperature: 0.1 } }"}) {
    EXPECT_EQ(refused(parameters), "ERROR_REASON_UNSPECIFIED") << parameters;
  }
}

TEST_F(SessionPolicy, ForkThatLeavesNoMarkIsRefused) {
  Begin(Marked());
  worker_->MustOpen(WithHistory(Open("parent"), {1}, 1));
  v1::StreamRequest request;
  request.mutable_fork()->set_parent_request_id("parent");
  *request.mutable_fork()->mutable_child() = Open("child");
  request.mutable_fork()->mutable_child()->mutable_parameters()->set_top_k(1);
  worker_->Send(request);
  const auto response = worker_->Await([](const auto& message) { return message.has_forked(); });
  EXPECT_EQ(response->forked().error().field(), "fork.child.parameters.top_k");
}

TEST_F(SessionPolicy, GreedyTextIsTakenWhereNoneIsMarked) {
  Begin(R"("receipts": false)");
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_temperature(0);
  worker_->MustOpen(open);
}

TEST_F(SessionPolicy, PriorityAboveThePolicysIsRefusedByName) {
  Begin(R"("maxPriority": 5)");
  worker_->MustOpen(Open());
  const std::string logits = LogitsAfter({}, 1);
  const auto step = [&](uint64_t id, std::optional<int32_t> priority) {
    StepBuilder builder(id, kModelVocabulary);
    builder.AddRow("a", id, static_cast<uint32_t>(id - 1), logits);
    v1::StreamRequest message = builder.Build();
    if (priority) message.mutable_step()->set_priority(*priority);
    return message;
  };
  worker_->Send(step(1, 6));
  const v1::Error error = worker_->StepError(1);
  EXPECT_EQ(error.reason(), v1::OUT_OF_RANGE);
  EXPECT_EQ(error.field(), "step.priority");
  EXPECT_EQ(error.limit(), "<= 5");
  EXPECT_THAT(error.message(), HasSubstr("operator's policy"));
  EXPECT_EQ(worker_->Run(step(1, 5)).size(), 1u);
  EXPECT_EQ(worker_->Run(step(2, std::nullopt)).size(), 1u);
  // The bound in force is that of the step's time.
  WriteRules(R"("maxPriority": 0)");
  Follow();
  worker_->Send(step(3, 5));
  EXPECT_EQ(worker_->StepError(3).limit(), "<= 0");
}

TEST_F(SessionPolicy, RotationKeepsKeyOfOpenText) {
  Begin(Marked());
  std::vector<uint32_t> text = {1, 2};
  const v1::OpenSequence open = WithHistory(Open(), text, 2);
  v1::OpenedState state = worker_->MustOpen(open);
  PlainSequence plain = Plain(open, 11, 3);
  uint64_t hash = state.history_hash();
  for (uint64_t step = 1; step <= 10; ++step) ASSERT_NO_FATAL_FAILURE(Draw(step, &hash, &text, &plain));
  WriteKeys("second 12\nfirst 11 3\n");
  Follow();
  EXPECT_EQ(events_.used(), std::vector<bool>{true});
  // A new sequence has the new key; the open one names its own.
  EXPECT_EQ(worker_->MustOpen(WithHistory(Open("b"), {1}, 1)).policy().watermark_key_id(), "second");
  v1::OpenSequence again = WithHistory(Open("a", 2), text, 2);
  again.set_watermark_key_id("first");
  state = worker_->MustOpen(again);
  EXPECT_EQ(state.policy().watermark_key_id(), "first");
  EXPECT_EQ(state.history_hash(), hash);
  for (uint64_t step = 11; step <= 20; ++step) ASSERT_NO_FATAL_FAILURE(Draw(step, &hash, &text, &plain));
  // A key that is gone is refused by name.
  WriteKeys("second 12\n");
  Follow();
  again.set_epoch(3);
  const v1::Error error = worker_->Open(again).error();
  EXPECT_EQ(error.field(), "open.watermark_key_id");
  EXPECT_EQ(error.limit(), "second");
}

// The policy under which a history's first piece came holds for all of them.
TEST_F(SessionPolicy, FirstPieceFixesThePolicy) {
  Begin(Marked());
  v1::OpenSequence piece = WithHistory(Open(), {1, 2, 3}, 4);
  piece.mutable_history()->set_continues(true);
  v1::StreamRequest request;
  *request.mutable_open() = piece;
  worker_->Send(request);
  worker_->LetLeave();
  WriteKeys("second 12\nfirst 11 3\n");
  WriteRules(Marked() + R"(, "defaults": {"topK": 5})");
  Follow();
  piece = WithHistory(Open(), {4}, 4);
  piece.mutable_history()->set_offset(3);
  const v1::SequenceOpened opened = worker_->Open(piece);
  ASSERT_TRUE(opened.has_state()) << opened.ShortDebugString();
  EXPECT_EQ(opened.state().policy().watermark_key_id(), "first");
  EXPECT_FALSE(opened.state().policy().has_applied());
  EXPECT_EQ(worker_->MustOpen(WithHistory(Open("b"), {1}, 1)).policy().watermark_key_id(), "second");
}

// The digest that clients learn reveals nothing about the key.
TEST_F(SessionPolicy, DigestIsThatOfTheKeysName) {
  Begin(Marked());
  const v1::OpenSequence open = WithHistory(Open(), {1, 2}, 2);
  const v1::OpenedState first = worker_->MustOpen(open);
  ASSERT_TRUE(first.policy().has_history_digest());
  WriteKeys("first 99 3\n");
  auto other = PolicyBook::Start(At("policies"), Limits(), false, &observer_, &events_);
  ASSERT_TRUE(other.ok());
  testing::TestEngine engine = testing::TestEngine::OnCpuWith(nullptr, other->get());
  StreamWorker worker(engine.get());
  EXPECT_EQ(worker.MustOpen(open).policy().history_digest(), first.policy().history_digest());
}

TEST_F(SessionPolicy, BadFileKeepsOldPolicies) {
  Begin(Marked());
  WriteKeys("first 99 3\n");  // an id that changes its key
  Follow();
  EXPECT_THAT(events_.why(), HasSubstr("the id had another key"));
  WriteRules(R"("colour": 1)");
  Follow();
  EXPECT_EQ(events_.used(), (std::vector<bool>{false, false}));
  EXPECT_EQ(worker_->MustOpen(WithHistory(Open(), {1}, 1)).policy().watermark_key_id(), "first");
  WriteRules(R"("defaults": {"topK": 3})");
  Follow();
  EXPECT_TRUE(events_.used().back());
  EXPECT_EQ(worker_->MustOpen(Open("b")).policy().applied().top_k(), 3u);
}

TEST_F(SessionPolicy, OtherTenantsHaveNone) {
  Begin(Marked());
  StreamWorker other(engine_->get(), {.tenant = "other"});
  const v1::OpenedState state = other.MustOpen(Open());
  EXPECT_FALSE(state.has_policy());
  EXPECT_FALSE(state.stateful());
}

TEST_F(SessionPolicy, ForkIsMarkedToo) {
  Begin(Marked());
  std::vector<uint32_t> text = {1, 2};
  worker_->MustOpen(WithHistory(Open(), text, 2));
  v1::StreamRequest fork;
  fork.mutable_fork()->set_parent_request_id("a");
  *fork.mutable_fork()->mutable_child() = Open("child");
  worker_->Send(fork);
  const auto forked = worker_->Await([](const v1::StreamResponse& response) { return response.has_forked(); });
  ASSERT_TRUE(forked);
  EXPECT_EQ(forked->forked().state().policy().watermark_key_id(), "first");
  fork.mutable_fork()->mutable_child()->mutable_parameters()->mutable_watermark()->set_key(1);
  worker_->Send(fork);
  const auto refused = worker_->Await([](const v1::StreamResponse& response) { return response.has_forked(); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->forked().error().field(), "fork.child.parameters.watermark");
}

// A draft is kept only if the draw, with the key's noise, yields it.
TEST_F(SessionPolicy, MarkRefusesDraftsThatTheirProbabilityAccepts) {
  Begin(Marked());
  const std::vector<uint32_t> text = {1, 2};
  constexpr uint32_t kDraft = 3;
  const PlainSequence plain = Plain(WithHistory(Open(), text, 2), 11, 3);
  const uint32_t right = PlainSequence(plain).Draw({.logits = LogitsAfter(text, 1)}, 2).token();
  uint64_t epoch = 0;
  // Fills the task of a row of one draft, and returns the result.
  const auto run = [&](const auto& fill) {
    const uint64_t hash = worker_->MustOpen(WithHistory(Open("a", ++epoch), text, 2)).history_hash();
    StepBuilder step(epoch, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", epoch, 2, LogitsAfter(text, 1));
    step.AddTensorRow(LogitsAfter({1, 2, kDraft}, 1));
    row.set_history_hash(hash);
    fill(&row);
    const auto results = worker_->Run(step.Build());
    return results.size() == 1 ? results[0] : v1::RowResult();
  };
  const auto certain = [](auto* task) {
    v1::SparseProbabilities& sparse = *task->add_sparse_probabilities();
    sparse.add_tokens(kDraft);
    sparse.add_probabilities(1);
  };
  const auto chain = [&](v1::VerifyMode mode, bool has_probabilities) {
    return run([&](v1::StepRow* row) {
      row->mutable_verify_draft()->set_mode(mode);
      row->mutable_verify_draft()->add_draft_tokens(kDraft);
      if (has_probabilities) certain(row->mutable_verify_draft());
    });
  };
  const auto tree = [&](v1::VerifyMode mode, bool has_probabilities) {
    return run([&](v1::StepRow* row) {
      v1::VerifyTree& task = *row->mutable_verify_tree();
      task.set_mode(mode);
      task.add_draft_tokens(kDraft);
      task.add_parents(-1);
      if (!has_probabilities) return;
      certain(&task);
      task.set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
    });
  };
  for (const v1::RowResult& refused : {chain(v1::VERIFY_MODE_REJECTION, false), chain(v1::VERIFY_MODE_REJECTION, true),
                                       chain(v1::VERIFY_MODE_BLOCK, true), tree(v1::VERIFY_MODE_REJECTION, true)}) {
    EXPECT_EQ(refused.error().reason(), v1::CONTRADICTION);
    EXPECT_THAT(refused.error().field(), ::testing::MatchesRegex("step.rows.0..verify_(draft|tree).mode"));
    EXPECT_EQ(refused.error().limit(), "VERIFY_MODE_GREEDY or VERIFY_MODE_COUPLED");
    EXPECT_THAT(refused.error().message(), HasSubstr("carries no mark"));
  }
  for (const v1::RowResult& drawn : {chain(v1::VERIFY_MODE_COUPLED, false), tree(v1::VERIFY_MODE_COUPLED, false),
                                     tree(v1::VERIFY_MODE_REJECTION, false)}) {
    ASSERT_TRUE(drawn.has_verify()) << drawn.ShortDebugString();
    EXPECT_EQ(drawn.verify().positions(0).token(), right);
  }
}

TEST_F(SessionPolicy, LimitIsStatedOrRefused) {
  Begin(R"("limits": [{"field": "temperature", "max": 1.5, "violation": "VIOLATION_APPLY"},
                      {"field": "top_k", "max": 20}])");
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_temperature(9);
  open.mutable_parameters()->set_top_k(20);
  EXPECT_EQ(worker_->MustOpen(open).policy().applied().ShortDebugString(), "temperature: 1.5");
  open.mutable_parameters()->set_top_k(21);
  const v1::Error error = worker_->Open(open).error();
  EXPECT_EQ(error.field(), "open.parameters.top_k");
  EXPECT_EQ(error.limit(), "<= 20");
}

TEST_F(SessionPolicy, ChainLeavesOutNoFilterThatTheLimitTurnsOn) {
  Begin(R"("limits": [{"field": "top_k", "max": 20, "violation": "VIOLATION_APPLY"}])");
  v1::OpenSequence open = Open();
  open.mutable_parameters()->mutable_chain()->mutable_explicit_()->add_samplers("temperature");
  const v1::Error error = worker_->Open(open).error();
  EXPECT_EQ(error.field(), "open.parameters.top_k");
  EXPECT_THAT(error.message(), HasSubstr("not in chain.explicit.samplers"));
  open.mutable_parameters()->mutable_chain()->mutable_explicit_()->add_samplers("top_k");
  open.set_epoch(2);
  EXPECT_EQ(worker_->MustOpen(open).policy().applied().top_k(), 20u);
}

// Sample's answer has no field for the changes.
TEST_F(SessionPolicy, SampleRefusesWhatItCannotState) {
  Begin(R"("defaults": {"topK": 4})");
  v1::SampleRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.set_vocabulary_size(kModelVocabulary);
  request.set_logits(LogitsAfter({}, 1) + LogitsAfter({}, 2));
  request.add_rows();
  request.add_rows()->mutable_parameters()->set_top_k(3);
  SampleRun run(engine_->get(), "default", std::make_shared<const v1::SampleRequest>(request), request.ByteSizeLong());
  SampleRun::Answer answer;
  absl::Notification done;
  run.Start(absl::InfiniteDuration(), [&](SampleRun::Answer given) {
    answer = std::move(given);
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_TRUE(std::holds_alternative<v1::SampleResponse>(answer));
  const v1::SampleResponse& response = std::get<v1::SampleResponse>(answer);
  EXPECT_EQ(response.rows(0).error().reason(), v1::CONTRADICTION);
  EXPECT_THAT(response.rows(0).error().field(), HasSubstr("parameters"));
  EXPECT_TRUE(response.rows(1).has_draw()) << response.ShortDebugString();
}

TEST_F(SessionPolicy, ReceiptsAreMadeUnasked) {
  ReceiptSettings settings;
  settings.key_file = folder_.key_file();
  settings.folder = folder_.path();
  NullEventLog log;
  CountingReceipts counts;
  auto receipts = ReceiptBook::Start(settings, &counts, &log);
  ASSERT_TRUE(receipts.ok()) << receipts.status();
  Begin(R"("receipts": true)", receipts->get());
  const v1::OpenedState state = worker_->MustOpen(Open());
  EXPECT_TRUE(state.policy().receipts());
  EXPECT_FALSE(state.receipt_salt().empty());
  EXPECT_TRUE(state.receipts().empty());  // they go to the files
  StepBuilder step(1, kModelVocabulary);
  step.AddRow("a", 1, 0, LogitsAfter({}, 0));
  EXPECT_TRUE(worker_->Run(step.Build()).at(0).has_draw());
  EXPECT_EQ(counts[Counter::kReceiptsMade], 1u);
  worker_.reset();
  engine_.reset();
  receipts->reset();
}

// Contexts that have stood before in the history are drawn by the sequence's own noise.
TEST_F(SessionPolicy, RepeatedContextsAreUnmarked) {
  WriteKeys("first 11 1\n");
  Begin(R"("watermark": {"keys": ")" + At("keys") + R"(", "skipRepeatedContexts": true})");
  std::vector<uint32_t> text = {1, 2};
  const v1::OpenSequence open = WithHistory(Open(), text, 2);
  uint64_t hash = worker_->MustOpen(open).history_hash();
  PlainSequence plain = Plain(open, 11, 1, /*skips=*/true);
  PlainSequence always = Plain(open, 11, 1);
  bool differs = false;
  for (uint64_t step = 1; step <= 60; ++step) {
    const auto at = static_cast<uint32_t>(text.size());
    const auto marked = always.Draw({.logits = LogitsAfter(text, 1)}, at).token();
    ASSERT_NO_FATAL_FAILURE(Draw(step, &hash, &text, &plain));
    always.Append(text.back());
    const bool repeated = std::ranges::find(text.begin(), text.end() - 2, text[text.size() - 2]) != text.end() - 2;
    if (!repeated) {
      EXPECT_EQ(marked, text.back());
    }
    differs |= marked != text.back();
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace sortition::service::session_policy_test
