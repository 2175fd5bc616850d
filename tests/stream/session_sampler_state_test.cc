// Samplers that keep a state, under speculation and in scores: each position has the state after the tokens before it.
// So the text equals drawing token by token, and rejected drafts leave no trace.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/stream/keyed_replica.h"
#include "tests/support/judged_rows.h"
#include "tests/support/scale.h"

namespace sortition::service::session_sampler_state_test {
namespace {

constexpr uint32_t kKinds = 6;  // kinds 3 and above also keep a history
constexpr uint32_t kStop = 7;   // of those

v1::OpenSequence OpenKind(uint32_t kind) {
  v1::OpenSequence open = MakeOpen("a", 1, kModelVocabulary);
  v1::SamplingParameters& parameters = *open.mutable_parameters();
  parameters.set_temperature(1.2f);
  parameters.mutable_processed_logprobs()->set_top(2);
  if (kind % 3 == 2) {
    parameters.mutable_adaptive_p()->set_target(0.2f);
  } else {
    parameters.mutable_mirostat()->set_version(kind % 3 + 1);
    parameters.mutable_mirostat()->set_tau(3);
    parameters.mutable_mirostat()->set_eta(0.4f);
  }
  if (kind % 2 == 0) parameters.mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
  if (kind >= 3) {
    parameters.set_presence_penalty(0.75f);
    parameters.add_stop_token_ids(kStop);
    for (const uint32_t token : {3u, 4u, 5u}) open.mutable_history()->add_tokens(token);
    open.mutable_history()->set_prompt_length(2);
  }
  return open;
}

// One text on one replica.
class Author {
 public:
  explicit Author(const v1::OpenSequence& open)
      : stateful_(open.has_history()),
        plain_(open),
        text_(open.history().tokens().begin(), open.history().tokens().end()) {
    replica_.worker().MustOpen(open);
    checkpoints_.resize(text_.size() + 1);
  }

  uint32_t length() const { return static_cast<uint32_t>(text_.size()); }
  const PlainSequence& plain() const { return plain_; }
  std::vector<uint32_t> Ahead(const std::vector<uint32_t>& more) const {
    std::vector<uint32_t> longer = text_;
    longer.insert(longer.end(), more.begin(), more.end());
    return longer;
  }
  // A step without its task, at the text's end, or after `ahead`.
  StepBuilder Begin(const std::vector<uint32_t>& ahead = {}) {
    PlainSequence then = plain_;
    for (const uint32_t token : ahead) then.Append(token);
    StepBuilder step(++step_id_, kModelVocabulary);
    v1::StepRow& row =
        step.AddRow("a", step_id_, static_cast<uint32_t>(Ahead(ahead).size()), LogitsAfter(Ahead(ahead), 1));
    row.set_checkpoint(checkpoints_.back());
    if (!stateful_) return step;
    row.set_history_hash(then.hash());
    if (std::exchange(cut_, false)) row.set_truncate_to(length());
    row.mutable_append_tokens()->Assign(ahead.begin(), ahead.end());
    return step;
  }
  v1::RowResult Run(const StepBuilder& step) {
    const v1::RowResult result = replica_.worker().RunOne(step.Build());
    replica_.worker().LetLeave();
    return result;
  }
  void Append(uint32_t token, const std::string& checkpoint) {
    text_.push_back(token);
    plain_.Append(token);
    checkpoints_.push_back(checkpoint);
  }
  // Cuts the text to a length with a known checkpoint.
  void TruncateTo(uint32_t position) {
    text_.resize(position);
    plain_.TruncateTo(position);
    checkpoints_.resize(position + 1);
    cut_ = true;
  }
  // A length not below `least` where the text may be cut.
  uint32_t PlaceToCut(uint32_t least, std::mt19937_64* random) const {
    for (uint32_t at = length(); at > least; --at) {
      if (!checkpoints_[at].empty() && (*random)() % 2 == 0) return at;
    }
    return length();
  }
  v1::DrawResult Draw() {
    const v1::RowResult result = Run(Begin());
    EXPECT_TRUE(result.has_draw()) << result.ShortDebugString();
    Append(result.draw().token(), result.draw().checkpoint());
    return result.draw();
  }

 private:
  const bool stateful_;
  Replica replica_{KeyOf('k')};
  PlainSequence plain_;
  std::vector<uint32_t> text_;
  std::vector<std::string> checkpoints_;  // by the text's length; empty if unknown
  uint64_t step_id_ = 0;
  bool cut_ = false;
};

class SessionSamplerState : public ::testing::TestWithParam<uint32_t> {};

// Chains, and trees in which every draft has a sibling before it. Texts are cut now and then, to where some step ended:
// rejected drafts have moved nothing, and the checkpoint is the drawn text's, byte for byte.
TEST_P(SessionSamplerState, CoupledTextEqualsDrawing) {
  const v1::OpenSequence open = OpenKind(GetParam());
  const auto stops = [&](uint32_t token) { return open.parameters().stop_token_ids_size() > 0 && token == kStop; };
  Author drawn(open), drafted(open);
  std::mt19937_64 random(GetParam());
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  // Fewer would not have everything happen that is counted below.
  const uint64_t rounds = std::max<uint64_t>(40, testing::Scaled(60));
  for (uint64_t round = 0; round < rounds; ++round) {
    if (random() % 4 == 0) {
      const uint32_t at = drafted.PlaceToCut(static_cast<uint32_t>(open.history().tokens_size()), &random);
      drawn.TruncateTo(at);
      drafted.TruncateTo(at);
    }
    const bool is_tree = random() % 2 == 0;
    StepBuilder step = drafted.Begin();
    v1::VerifyTree drafts;
    const auto add = [&](int32_t parent, std::vector<uint32_t> way) {
      drafts.add_draft_tokens(way.back());
      drafts.add_parents(parent);
      step.AddTensorRow(LogitsAfter(drafted.Ahead(way), 1));
      return drafts.draft_tokens_size() - 1;
    };
    std::vector<v1::DrawResult> right = {drawn.Draw()};
    std::vector<uint32_t> ahead;
    int32_t parent = -1;
    bool holds = true;  // the drafts so far are right
    for (uint64_t k = 1 + random() % 5; k > 0; --k) {
      const uint32_t token = right.back().token();
      const uint32_t guess = holds && random() % 4 != 0 ? token : static_cast<uint32_t>(random() % kModelVocabulary);
      const uint32_t sibling = (guess + 1 + static_cast<uint32_t>(random() % 8)) % kModelVocabulary;
      ahead.push_back(sibling);
      if (is_tree) add(parent, ahead);
      ahead.back() = guess;
      parent = add(parent, ahead);
      if (!holds) continue;
      holds = guess == token && !stops(token);
      if (!stops(token) && (guess == token || (is_tree && sibling == token))) right.push_back(drawn.Draw());
    }
    v1::StepRow& row = *step.step().mutable_rows(0);
    if (is_tree) {
      drafts.set_mode(v1::VERIFY_MODE_COUPLED);
      *row.mutable_verify_tree() = drafts;
    } else {
      row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
      *row.mutable_verify_draft()->mutable_draft_tokens() = drafts.draft_tokens();
    }
    const v1::RowResult result = drafted.Run(step);
    ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
    const v1::VerifyResult& verify = result.verify();
    ASSERT_EQ(static_cast<size_t>(verify.positions_size()), right.size());
    for (int i = 0; i < verify.positions_size(); ++i) {
      const v1::DrawResult& expected = right[static_cast<size_t>(i)];
      ASSERT_EQ(verify.positions(i).token(), expected.token());
      ASSERT_EQ(verify.positions(i).processed().SerializeAsString(), expected.processed().SerializeAsString());
      const bool is_last = i + 1 == verify.positions_size();
      drafted.Append(verify.positions(i).token(), is_last ? verify.checkpoint() : "");
    }
    ASSERT_EQ(verify.checkpoint(), right.back().checkpoint());
    ASSERT_EQ(verify.history_hash(), right.back().history_hash());
    ASSERT_EQ(verify.matched(), verify.accepted()) << "nothing behind the text is judged";
    accepted += verify.accepted();
    rejected += verify.accepted() < static_cast<uint32_t>(drafts.draft_tokens_size());
  }
  EXPECT_GT(accepted, rounds / 2);
  EXPECT_GT(rejected, rounds / 8);
}

// Against the law's reference, which is told the state after the tokens before: accepted drafts, and tokens drawn in
// the place of rejected ones.
TEST_P(SessionSamplerState, RejectionAdvancesStateByEmittedToken) {
  Author author(OpenKind(GetParam()));
  std::mt19937_64 random(100 + GetParam());
  std::optional<uint64_t> state;
  std::array<uint64_t, 4> lengths = {};
  for (uint64_t n = 0; n < std::max<uint64_t>(60, testing::Scaled(100)); ++n) {
    StepBuilder step = author.Begin();
    v1::VerifyDraft& chain = *step.step().mutable_rows(0)->mutable_verify_draft();
    chain.set_mode(v1::VERIFY_MODE_REJECTION);
    std::vector<float> q(kModelVocabulary, 1.0f / kModelVocabulary);
    const bool is_dense = n % 2 == 0;
    PlainSequence then = author.plain();
    std::vector<uint32_t> ahead;
    std::vector<kernels::RowOutput> expected;
    bool holds = true;
    const auto judge = [&](PlainSequence::Row row) {
      const std::string logits = LogitsAfter(author.Ahead(ahead), 1);
      row.logits = logits;
      row.sampler_state = state;
      expected.push_back(then.Answer(row, author.length() + static_cast<uint32_t>(ahead.size())));
      state = expected.back().sampler_state;
    };
    for (uint32_t i = 0; i < 3; ++i) {
      // The likeliest token of the row, more often than not.
      const std::string logits = LogitsAfter(author.Ahead(ahead), 1);
      const auto best = then.Answer({.logits = logits, .task = kernels::RowTask::kScore, .sampler_state = state}, 0);
      const uint32_t draft = random() % 4 != 0 && !best.processed.top.empty()
                                 ? best.processed.top[0].token
                                 : static_cast<uint32_t>(random() % kModelVocabulary);
      chain.add_draft_tokens(draft);
      if (holds) {
        kernels::DraftDistribution distribution;
        if (is_dense) distribution.form = kernels::DraftDistribution::Form::kDense;
        distribution.dense = q.data();
        judge({.logits = logits, .task = kernels::RowTask::kVerify, .given = draft, .draft = distribution});
        holds = expected.back().accepted && !(GetParam() >= 3 && draft == kStop);
      }
      then.Append(draft);
      ahead.push_back(draft);
      step.AddTensorRow(LogitsAfter(author.Ahead(ahead), 1));
      if (is_dense) {
        const uint32_t row = step.AddDraftRow(q);
        if (i == 0) chain.set_draft_row(row);
      }
    }
    if (holds) judge(PlainSequence::Row());
    const v1::RowResult result = author.Run(step);
    ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
    const v1::VerifyResult& verify = result.verify();
    ASSERT_EQ(static_cast<size_t>(verify.positions_size()), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(verify.positions(static_cast<int>(i)).token(), expected[i].token);
      ASSERT_EQ(verify.positions(static_cast<int>(i)).processed().SerializeAsString(),
                author.plain().Encode(expected[i]).processed().SerializeAsString());
    }
    ++lengths[verify.accepted()];
    for (size_t i = 0; i < expected.size(); ++i) author.Append(expected[i].token, verify.checkpoint());
  }
  for (const uint64_t count : lengths) EXPECT_GT(count, 0u);
}

// Scores in one row, or in two rows, where the second takes the checkpoint of the first.
TEST_P(SessionSamplerState, ScoresFollowTheGivenTokens) {
  Author author(OpenKind(GetParam()));
  std::optional<uint64_t> state;
  const auto draw = [&] {
    const std::string logits = LogitsAfter(author.Ahead({}), 1);
    const auto expected = author.plain().Answer({.logits = logits, .sampler_state = state}, author.length());
    state = expected.sampler_state;
    EXPECT_EQ(author.Draw().token(), expected.token);
  };
  for (int i = 0; i < 5; ++i) draw();
  // Some are kept, others are not.
  std::vector<uint32_t> given;
  PlainSequence then = author.plain();
  std::vector<kernels::RowOutput> expected;
  std::optional<uint64_t> at = state;
  for (uint32_t i = 0; i < 6; ++i) {
    const std::string logits = LogitsAfter(author.Ahead(given), 1);
    PlainSequence::Row row = {.logits = logits, .task = kernels::RowTask::kScore, .given = 11, .sampler_state = at};
    const uint32_t position = author.length() + i;
    if (i % 2 == 0) row.given = then.Answer(row, position).processed.top[0].token;
    expected.push_back(then.Answer(row, position));
    at = expected.back().sampler_state;
    then.Append(row.given);
    given.push_back(row.given);
  }
  EXPECT_NE(at, state);
  const auto score = [&](size_t from, size_t to, const std::string& checkpoint) {
    std::vector<uint32_t> ahead(given.begin(), given.begin() + static_cast<ptrdiff_t>(from));
    StepBuilder step = author.Begin(ahead);
    v1::StepRow& row = *step.step().mutable_rows(0);
    if (!checkpoint.empty()) row.set_checkpoint(checkpoint);
    for (size_t i = from; i < to; ++i) {
      if (i > from) step.AddTensorRow(LogitsAfter(author.Ahead(ahead), 1));
      row.mutable_score()->add_tokens(given[i]);
      ahead.push_back(given[i]);
    }
    const v1::RowResult result = author.Run(step);
    EXPECT_TRUE(result.has_score()) << result.ShortDebugString();
    EXPECT_EQ(static_cast<size_t>(result.score().positions_size()), to - from);
    return result.score();
  };
  const v1::ScoreResult whole = score(0, given.size(), "");
  for (size_t i = 0; i < given.size(); ++i) {
    ASSERT_EQ(whole.positions(static_cast<int>(i)).processed().SerializeAsString(),
              then.Encode(expected[i]).processed().SerializeAsString());
  }
  v1::ScoreResult parts = score(0, 4, "");
  const std::string checkpoint = parts.checkpoint();
  v1::ScoreResult later = score(4, given.size(), checkpoint);
  for (v1::Position& position : *later.mutable_positions()) position.set_index(position.index() + 4);
  parts.MergeFrom(later);
  EXPECT_EQ(parts.SerializeAsString(), whole.SerializeAsString());
  draw();  // the sequence stands where it stood
}

// Ten bits of surprise each, above mu = 8. llama.cpp keeps one of them (docs/semantics.md).
TEST(Mirostat2, KeepsAllTiesOfTheFirstAboveMu) {
  constexpr uint32_t kTies = 1024;
  TestEngine engine = TestEngine::OnCpu();
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kTies);
  open.mutable_parameters()->mutable_mirostat()->set_version(2);
  open.mutable_parameters()->mutable_mirostat()->set_tau(4);
  open.mutable_parameters()->mutable_kept_set()->set_count(true);
  worker.MustOpen(open);
  const auto kept = [&](uint64_t step_id, const std::vector<float>& logits) {
    StepBuilder step(step_id, kTies);
    step.AddRow("a", step_id, 0, F32Bytes(logits));
    return worker.Run(step.Build()).at(0).draw().kept_count();
  };
  std::vector<float> logits(kTies, 1.0f);
  EXPECT_EQ(kept(1, logits), kTies);
  logits[7] = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(kept(2, logits), 1u) << "the first alone";
}

INSTANTIATE_TEST_SUITE_P(Kinds, SessionSamplerState, ::testing::Range(0u, kKinds));

}  // namespace
}  // namespace sortition::service::session_sampler_state_test
