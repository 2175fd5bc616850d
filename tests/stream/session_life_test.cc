// Whole lives of sequences, step by step against the plain sequence: tokens, hashes and the bits of logprobs.

#include <ostream>

#include "absl/strings/str_cat.h"
#include "tests/support/session.h"

namespace sortition::service::session_life_test {
namespace {

using kernels::DType;

constexpr uint32_t kVocabulary = 300;
constexpr uint32_t kLive = 290;

struct Life {
  std::string name;
  std::string parameters;
  // GoogleTest puts it into the test's name.
  friend void PrintTo(const Life& life, std::ostream* out) { *out << life.name; }
};

std::string Lists() {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "allowed_token_ids: ", 2 * i, " ");
  for (int i = 0; i < 20; ++i) absl::StrAppend(&text, "banned_token_ids: ", 3 * i, " ");
  for (int i = 0; i < 50; ++i) absl::StrAppend(&text, "logit_bias { token: ", 5 * i, " bias: ", 0.1 * i - 2, " } ");
  return text;
}

std::vector<Life> Lives() {
  return {
      {"Default", ""},
      {"Greedy", "temperature: 0"},
      {"Filters", "temperature: 1.3 top_k: 40 top_p: 0.9 min_p: 0.02"},
      {"Logprobs", "top_p: 0.8 raw_logprobs { top: 5 } processed_logprobs { top: 1000 }"},
      {"Repetition", "repetition_penalty: 1.3"},
      {"Frequency", "frequency_penalty: 0.7 raw_logprobs {}"},
      {"Presence", "temperature: 0.5 presence_penalty: -1.5 processed_logprobs { top: 3 }"},
      {"Lists", Lists()},
      {"Everything",
       "temperature: 0.9 top_k: 30 top_p: 0.95 min_p: 0.01 repetition_penalty: 0.8 frequency_penalty: 0.3"
       " presence_penalty: 0.2 banned_token_ids: 17 logit_bias { token: 23 bias: 4 }"
       " raw_logprobs { top: 2 } processed_logprobs { top: 2 }"},
  };
}

class SessionLife : public ::testing::TestWithParam<Life> {};

// Fifty steps in each element type. Among them: masks in both forms, redraws, truncations, and tokens that the worker
// forced.
TEST_P(SessionLife, EqualsPlainSequence) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  std::mt19937_64 random(5);
  uint64_t batch_id = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    v1::OpenSequence open = MakeOpen(absl::StrCat(GetParam().name, static_cast<int>(dtype)), 1, kVocabulary);
    open.set_live_vocabulary_size(kLive);
    open.set_choice_index(static_cast<uint32_t>(dtype));
    open.set_seed(random());
    *open.mutable_parameters() = testing::ParametersOf(GetParam().parameters);
    v1::OpenSequence whole = open;
    whole.mutable_history()->set_prompt_length(20);
    for (int i = 0; i < 25; ++i) whole.mutable_history()->add_tokens(static_cast<uint32_t>(random() % kLive));
    PlainSequence plain(whole);
    const v1::SequenceOpened unsent = worker.Open(open);
    const v1::OpenedState opened = unsent.has_state() ? unsent.state() : worker.MustOpen(whole);
    EXPECT_EQ(opened.seed(), open.seed());
    if (opened.stateful()) {
      EXPECT_EQ(opened.position(), 25u);
      EXPECT_EQ(opened.history_hash(), plain.hash());
    }

    for (uint64_t step_id = 1; step_id <= 50; ++step_id) {
      const std::string logits = RandomLogits(dtype, kVocabulary, &random);
      PlainSequence::Row plain_row{dtype, logits, 0, {}, std::nullopt};
      StepBuilder step(++batch_id, kVocabulary, dtype);
      v1::StepRow& row = step.AddRow(open.request_id(), step_id, 0, logits);
      if (random() % 8 == 0 && plain.position() > 25) {
        plain.TruncateTo(plain.position() - 1 - static_cast<uint32_t>(random() % 3));
        if (opened.stateful()) row.set_truncate_to(plain.position());
      }
      for (uint64_t forced = random() % 8; forced < 3; ++forced) {
        plain.Append(static_cast<uint32_t>(random() % kLive));
        if (opened.stateful()) row.add_append_tokens(plain.tokens().back());
      }
      if (random() % 6 == 0) {
        plain_row.mask.resize(kVocabulary);
        for (size_t id = 0; id < kVocabulary; ++id) plain_row.mask[id] = random() % 2 == 0;
        row.mutable_mask()->set_mask_row(step.AddMask(plain_row.mask));
      } else if (random() % 6 == 0) {
        plain_row.allowed.emplace();
        for (int i = 0; i < 60; ++i) plain_row.allowed->push_back(static_cast<uint32_t>(random() % kLive));
        for (const uint32_t token : *plain_row.allowed) row.mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
      }
      if (random() % 5 == 0) {
        plain_row.draw_salt = static_cast<uint32_t>(random() % 65536);
        row.set_draw_salt(plain_row.draw_salt);
      }
      row.set_position(plain.position());
      if (opened.stateful()) row.set_history_hash(plain.hash());

      v1::DrawResult expected = plain.Draw(plain_row);
      plain.Append(expected.token());
      if (opened.stateful()) expected.set_history_hash(plain.hash());
      const std::vector<v1::RowResult> results = worker.Run(step.Build());
      ASSERT_EQ(results.size(), 1u);
      ASSERT_EQ(results[0].draw().SerializeAsString(), expected.SerializeAsString())
          << "step " << step_id << ": " << results[0].ShortDebugString() << " for " << expected.ShortDebugString();
      ASSERT_EQ(results[0].step_id(), step_id);
    }
  }
  EXPECT_TRUE(worker.IsIdle());
  EXPECT_EQ(engine.observer().totals().tokens, 150u);
  EXPECT_EQ(engine.observer().totals().errors, engine.observer().refused(Reason::kHistoryRequired));
  EXPECT_EQ(engine.observer().latencies().size(), 150u);
}

INSTANTIATE_TEST_SUITE_P(Session, SessionLife, ::testing::ValuesIn(Lives()),
                         [](const auto& life) { return life.param.name; });

TEST(SessionOpen, StatelessKeepsNothing) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  const v1::OpenedState opened = worker.MustOpen(open);
  EXPECT_FALSE(opened.stateful());
  EXPECT_EQ(opened.position(), 0u);
  EXPECT_FALSE(opened.has_history_hash());
  EXPECT_EQ(opened.last_step_id(), 0u);
  EXPECT_EQ(engine->sequences().live_sequences(), 0u);
}

// Any position, in any order, as often as wanted, without a hash.
TEST(SessionOpen, StatelessTakesAnyStep) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  const v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  worker.MustOpen(open);
  std::mt19937_64 random(6);
  const std::string logits = RandomLogits(DType::kF32, kVocabulary, &random);
  uint64_t batch_id = 0;
  for (const uint32_t position : {9u, 0u, 9u, 4'000'000u, 3u}) {
    StepBuilder step(++batch_id, kVocabulary);
    step.AddRow("a", 1, position, logits);
    const auto results = worker.Run(step.Build());
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].draw().SerializeAsString(),
              PlainSequence(open).Draw({.logits = logits}, position).SerializeAsString());
    EXPECT_FALSE(results[0].draw().has_history_hash());
  }
}

TEST(SessionOpen, DrawnSeedIsReturnedAndUsed) {
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.clear_seed();
  open.set_seed(worker.MustOpen(open).seed());
  std::mt19937_64 random(7);
  for (uint32_t position = 0; position < 20; ++position) {
    const std::string logits = RandomLogits(DType::kF32, kVocabulary, &random);
    StepBuilder step(position, kVocabulary);
    step.AddRow("a", 1 + position, position, logits);
    EXPECT_EQ(worker.Run(step.Build()).at(0).draw().token(),
              PlainSequence(open).Draw({.logits = logits}, position).token());
  }
}

}  // namespace
}  // namespace sortition::service::session_life_test
