// A stream's memory besides the states of its sequences counts in `max_state_bytes` too, and ends with the stream.

#include "absl/strings/str_cat.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_held_test {
namespace {

constexpr uint64_t kMostBytes = 1 << 20;

class SessionHeld : public ::testing::Test {
 protected:
  ~SessionHeld() override {
    worker_.Disconnect();
    other_.Disconnect();
    for (const char* client : {"default", "other"}) engine_->sequences().ForgetAll(client);
    EXPECT_EQ(held(), 0u);
  }

  // Builds an open that needs no state, and some 16 KB for its options.
  static v1::OpenSequence WithOptions(int i) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("options-", i), 1, 8192);
    for (uint32_t token = 0; token < 4096; ++token) open.mutable_parameters()->add_allowed_token_ids(token);
    return open;
  }
  // The first piece of a history of 1,000 tokens.
  static v1::OpenSequence Begun(int i) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("begun-", i), 1, 8192);
    open.mutable_parameters()->set_no_repeat_ngram_size(3);
    for (uint32_t token = 0; token < 500; ++token) open.mutable_history()->add_tokens(token);
    open.mutable_history()->set_continues(true);
    return open;
  }
  // Sends messages until one is refused, and returns the number before it.
  template <typename Message>
  static int SendUntilRefused(StreamWorker* worker, Message message) {
    for (int i = 0; i < 10'000; ++i) {
      worker->Send(message(i));
      worker->LetLeave();
      const auto answer = worker->sink().Take([](const auto&) { return true; });
      if (!answer || !answer->opened().has_error()) continue;
      ExpectError(answer->opened().error(), Reason::kOverloaded, answer->opened().error().field());
      EXPECT_EQ(answer->opened().error().limit(), absl::StrCat("max_state_bytes ", kMostBytes));
      return i;
    }
    return -1;
  }
  uint64_t held() { return engine_->sequences().state_bytes(); }

  TestEngine engine_ = TestEngine::OnCpu({.max_state_bytes = kMostBytes, .replay_guard = absl::ZeroDuration()});
  StreamWorker worker_{engine_.get()};
  StreamWorker other_{engine_.get(), {.tenant = "other"}};
};

TEST_F(SessionHeld, StatelessOptionsAreBounded) {
  const auto open = [](int i) { return testing::Message(WithOptions(i)); };
  const int opened = SendUntilRefused(&worker_, open);
  EXPECT_GT(opened, 20);
  EXPECT_LT(opened, 40);
  EXPECT_LE(held(), kMostBytes / 2);
  // Another stream has less room, but some. Closing a sequence makes room for the first.
  EXPECT_EQ(SendUntilRefused(&other_, open), opened / 2);
  other_.Disconnect();
  ASSERT_TRUE(worker_.Close(testing::MakeClose("options-0", 1)).was_known());
  worker_.MustOpen(WithOptions(opened));
}

// A sequence that is opened again replaces its options.
TEST_F(SessionHeld, SequenceIsCountedOnce) {
  worker_.MustOpen(WithOptions(0));
  const uint64_t once = held();
  for (int i = 0; i < 100; ++i) worker_.MustOpen(WithOptions(0));
  EXPECT_EQ(held(), once);
}

TEST_F(SessionHeld, PartialHistoriesAreBounded) {
  const int begun = SendUntilRefused(&worker_, [](int i) { return testing::Message(Begun(i)); });
  EXPECT_GT(begun, 3);
  EXPECT_LT(begun, 20);
  EXPECT_LE(held(), kMostBytes / 2);
  // A history that is complete belongs to the table.
  v1::OpenSequence last = Begun(0);
  last.mutable_history()->set_offset(500);
  last.mutable_history()->set_continues(false);
  worker_.MustOpen(last);
}

// After the first piece of a history is refused, its later pieces are skipped. The server has to remember this.
TEST_F(SessionHeld, SkippedPiecesAreBounded) {
  const auto refused = [](int i) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("refused-", i), 1, 0);
    open.mutable_history()->set_continues(true);
    return testing::Message(open);
  };
  for (int i = 0; i < 20'000; ++i) {
    worker_.Send(refused(i));
    worker_.sink().Take([](const auto&) { return true; });
  }
  EXPECT_GT(held(), kMostBytes / 4);
  EXPECT_LE(held(), kMostBytes / 2);
}

// Idle states are evicted to make room for held options, since workers can bring idle states again.
TEST_F(SessionHeld, IdleStatesMakeRoom) {
  for (int i = 0; i < 200; ++i) {
    v1::OpenSequence open = StatefulOpen(absl::StrCat("idle-", i), 1);
    for (uint32_t token = 0; token < 2000; ++token) open.mutable_history()->add_tokens(token % kStatefulVocabulary);
    ASSERT_TRUE(other_.Open(open).has_state());
  }
  const uint32_t live = engine_->sequences().live_sequences();
  EXPECT_GT(SendUntilRefused(&worker_, [](int i) { return testing::Message(WithOptions(i)); }), 20);
  EXPECT_LT(engine_->sequences().live_sequences(), live);
  EXPECT_LE(held(), kMostBytes);
}

}  // namespace
}  // namespace sortition::service::session_held_test
