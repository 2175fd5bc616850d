// Forks: a sequence that continues another one's history.

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_fork_test {
namespace {

class SessionFork : public ::testing::Test {
 protected:
  SessionFork() {
    worker_.MustOpen(parent_);
    Draw(&plain_, "parent", 1, 20);
    Draw(&plain_, "parent", 2, 21);
  }

  void Draw(PlainSequence* plain, std::string_view id, uint64_t step_id, uint32_t token) {
    EXPECT_EQ(worker_.Run(PeakStep(++batch_, id, step_id, *plain, token)).at(0).draw().token(), token);
    plain->Append(token);
  }

  static v1::StreamRequest MakeFork(const v1::OpenSequence& child, std::optional<uint32_t> position) {
    v1::StreamRequest request;
    request.mutable_fork()->set_parent_request_id("parent");
    *request.mutable_fork()->mutable_child() = child;
    if (position) request.mutable_fork()->set_position(*position);
    return request;
  }
  static v1::OpenSequence Child(std::string_view id) {
    v1::OpenSequence child = StatefulOpen(id, 1);
    child.clear_history();
    child.set_choice_index(7);
    child.set_seed(99);
    return child;
  }
  v1::SequenceForked Fork(const v1::StreamRequest& request) {
    const v1::SequenceForked forked = worker_.Fork(request);
    EXPECT_EQ(forked.request_id(), request.fork().child().request_id());
    return forked;
  }
  // Returns the child's history, written down.
  static PlainSequence PlainChild(v1::OpenSequence child, const std::vector<uint32_t>& tokens, uint32_t prompt_length) {
    for (uint32_t token : tokens) child.mutable_history()->add_tokens(token);
    child.mutable_history()->set_prompt_length(prompt_length);
    return PlainSequence(child);
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
  const v1::OpenSequence parent_ = StatefulOpen("parent", 1);
  PlainSequence plain_{parent_};
  uint64_t batch_ = 0;
};

TEST_F(SessionFork, ContinuesParentsHistoryIndependently) {
  const v1::SequenceForked forked = Fork(MakeFork(Child("child"), std::nullopt));
  ASSERT_TRUE(forked.has_state()) << forked.error().message();
  PlainSequence child = PlainChild(Child("child"), {1, 2, 3, 20, 21}, 2);
  EXPECT_EQ(forked.state().position(), 5u);
  EXPECT_EQ(forked.state().history_hash(), child.hash());
  EXPECT_EQ(forked.state().seed(), 99u);
  EXPECT_EQ(forked.state().last_step_id(), 0u);
  // Neither notices the other.
  Draw(&plain_, "parent", 3, 30);
  Draw(&child, "child", 1, 40);
  Draw(&plain_, "parent", 4, 31);
  Draw(&child, "child", 2, 41);
  worker_.Send(testing::MakeClose("parent", 1));
  Draw(&child, "child", 3, 42);
}

TEST_F(SessionFork, FromAnyKeptPosition) {
  const std::vector<uint32_t> tokens = {1, 2, 3, 20, 21};
  for (const uint32_t position : {5u, 4u, 2u, 1u, 0u}) {
    const v1::OpenSequence open = Child(absl::StrCat("child ", position));
    const v1::SequenceForked forked = Fork(MakeFork(open, position));
    ASSERT_TRUE(forked.has_state()) << forked.error().message();
    const PlainSequence child = PlainChild(open, {tokens.begin(), tokens.begin() + position}, std::min(position, 2u));
    EXPECT_EQ(forked.state().history_hash(), child.hash()) << position;
  }
}

TEST_F(SessionFork, ChildHasItsOptions) {
  v1::OpenSequence open = Child("child");
  open.mutable_parameters()->set_presence_penalty(0.25f);
  open.mutable_parameters()->mutable_raw_logprobs();
  ASSERT_TRUE(Fork(MakeFork(open, std::nullopt)).has_state());
  const PlainSequence child = PlainChild(open, {1, 2, 3, 20, 21}, 2);
  std::mt19937_64 random(3);
  const std::string logits = RandomLogits(kernels::DType::kF32, kStatefulVocabulary, &random);
  StepBuilder step(++batch_, kStatefulVocabulary);
  step.AddRow("child", 1, 5, logits).set_history_hash(child.hash());
  v1::DrawResult drawn = worker_.Run(step.Build()).at(0).draw();
  drawn.clear_history_hash();
  EXPECT_EQ(drawn.SerializeAsString(), child.Draw({.logits = logits}).SerializeAsString());
}

// That of its options, and of the edits that a child of other penalties has for itself.
TEST_F(SessionFork, LedgerHasItsWork) {
  v1::OpenSequence child = Child("child");
  child.mutable_parameters()->set_presence_penalty(0.25f);
  const uint64_t before = engine_->ledger().work();
  EXPECT_TRUE(Fork(MakeFork(child, std::nullopt)).has_state());
  const uint64_t read = price::kParameterByte * child.parameters().ByteSizeLong();
  EXPECT_GE(engine_->ledger().work(), before + read + 2 * price::kFoundEdit) << "two tokens were drawn";
}

TEST_F(SessionFork, StatelessChildNeedsNoHistory) {
  v1::OpenSequence open = Child("child");
  open.clear_parameters();
  const v1::SequenceForked forked = Fork(MakeFork(open, std::nullopt));
  ASSERT_TRUE(forked.has_state()) << forked.error().message();
  EXPECT_FALSE(forked.state().stateful());
}

TEST_F(SessionFork, InvalidForkIsRefusedByName) {
  const v1::SequenceForked beyond = Fork(MakeFork(Child("c"), 6));
  ExpectError(beyond.error(), Reason::kHistoryRequired, "fork.position");
  EXPECT_EQ(beyond.error().limit(), "0..5");
  const std::tuple<Reason, std::string, void (*)(v1::ForkSequence*)> cases[] = {
      {Reason::kContradiction, "child.request_id", [](auto* fork) { fork->mutable_child()->set_request_id("parent"); }},
      {Reason::kUnknownSequence, "parent_request_id", [](auto* fork) { fork->set_parent_request_id("nobody"); }},
      {Reason::kMissingField, "parent_request_id", [](auto* fork) { fork->clear_parent_request_id(); }},
      {Reason::kContradiction, "child.history",
       [](auto* fork) { fork->mutable_child()->mutable_history()->add_tokens(1); }},
      {Reason::kVocabularyMismatch, "child.vocabulary_size",
       [](auto* fork) { fork->mutable_child()->set_live_vocabulary_size(40); }},
      {Reason::kOutOfRange, "child.parameters.top_p",
       [](auto* fork) { fork->mutable_child()->mutable_parameters()->set_top_p(2); }},
  };
  for (const auto& [reason, field, change] : cases) {
    v1::StreamRequest request = MakeFork(Child("c"), 3);
    change(request.mutable_fork());
    ExpectError(Fork(request).error(), reason, "fork." + field);
  }
  // None of these has made a sequence or changed the parent.
  EXPECT_EQ(engine_->sequences().live_sequences(), 1u);
  Draw(&plain_, "parent", 3, 30);
}

TEST_F(SessionFork, StatelessParentNeedsHistory) {
  v1::OpenSequence stateless = StatefulOpen("plain", 1);
  stateless.clear_parameters();
  stateless.clear_history();
  worker_.MustOpen(stateless);
  v1::StreamRequest request = MakeFork(Child("c"), 3);
  request.mutable_fork()->set_parent_request_id("plain");
  ExpectError(Fork(request).error(), Reason::kHistoryRequired, "fork.parent_request_id");
}

TEST_F(SessionFork, LostParentIsSuperseded) {
  StreamWorker other(engine_.get());
  other.MustOpen(Reopened(parent_, 2));
  ExpectError(Fork(MakeFork(Child("c"), 3)).error(), Reason::kSuperseded, "fork.parent_request_id");
}

}  // namespace
}  // namespace sortition::service::session_fork_test
