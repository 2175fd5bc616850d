// One row of a step: everything that concerns it alone.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "service/text/judge_row.h"
#include "service/wire/step_request.h"

namespace sortition::service::step_row_test {
namespace {

constexpr uint32_t kVocabulary = 70;
constexpr uint32_t kLive = 60;

class StepRowTest : public ::testing::Test {
 protected:
  StepRowTest() {
    shape_.vocabulary = kVocabulary;
    shape_.tensor_rows = 4;
    shape_.first_rows = {0, 1, 2, 3, 4};
    shape_.mask_payload = 1;
    shape_.mask_rows = 2;
    spec_.vocabulary = kVocabulary;
    spec_.live_vocabulary = kLive;
    spec_.presence_penalty = 1;
    row_.set_request_id("a");
    row_.set_step_id(5);
    row_.set_position(9);
    row_.set_history_hash(77);
  }

  std::variant<RowPlan, Refusal> Parse(int index = 2) {
    RowPlan plan;
    const auto row = static_cast<uint32_t>(index);
    auto refusal = JudgeRow(ToAsk(row_, row), shape_.TensorsOf(row), spec_, limits_, &plan);
    if (refusal) return *std::move(refusal);
    plan.intent.options_digest = DigestOptions(plan);
    return plan;
  }
  RowPlan MustParse() {
    auto parsed = Parse();
    if (auto* refusal = std::get_if<Refusal>(&parsed)) {
      ADD_FAILURE() << refusal->field << ": " << refusal->message;
      return RowPlan();
    }
    return std::get<RowPlan>(parsed);
  }
  void ExpectRefused(Reason reason, const std::string& field) {
    const auto parsed = Parse();
    ASSERT_TRUE(std::holds_alternative<Refusal>(parsed)) << field;
    EXPECT_EQ(std::get<Refusal>(parsed).reason, reason) << ReasonName(std::get<Refusal>(parsed).reason);
    EXPECT_EQ(std::get<Refusal>(parsed).field, field);
  }

  StepShape shape_;
  SequenceSpec spec_;
  Limits limits_;
  v1::StepRow row_;
};

TEST_F(StepRowTest, CarriesEveryField) {
  row_.set_truncate_to(3);
  row_.add_append_tokens(kLive - 1);
  row_.set_draw_salt(65535);
  row_.set_tensor_row(3);
  row_.mutable_mask()->set_mask_row(1);
  const RowPlan request = MustParse();
  EXPECT_EQ(request.intent.step_id, 5u);
  EXPECT_EQ(request.intent.position, 9u);
  EXPECT_EQ(request.intent.history_hash, 77u);
  EXPECT_EQ(request.intent.truncate_to, 3u);
  EXPECT_EQ(request.intent.append_tokens, std::vector<uint32_t>{kLive - 1});
  EXPECT_EQ(request.draw_salt, 65535u);
  EXPECT_EQ(request.tensor_row, 3u);
  ASSERT_EQ(request.masks.size(), 1u);
  EXPECT_EQ(request.masks[0].mask_row, 1u);
  EXPECT_FALSE(request.masks[0].has_allowed_tokens);
}

TEST_F(StepRowTest, DrawMayBeExplicit) {
  const uint64_t digest = MustParse().intent.options_digest;
  row_.mutable_draw();
  EXPECT_EQ(MustParse().intent.options_digest, digest);
}

TEST_F(StepRowTest, TensorRowDefaultsToTheRow) {
  EXPECT_EQ(MustParse().tensor_row, 2u);
  const auto parsed = Parse(4);
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed));
  EXPECT_EQ(std::get<Refusal>(parsed).field, "step.rows[4].tensor_row");
  for (const uint32_t tensor_row : {4u, 0xffffffffu}) {
    row_.set_tensor_row(tensor_row);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].tensor_row");
  }
}

TEST_F(StepRowTest, AnotherVocabulary) {
  shape_.vocabulary = kVocabulary + 1;
  ExpectRefused(Reason::kVocabularyMismatch, "step.logits.vocabulary_size");
}

TEST_F(StepRowTest, RequiredFields) {
  row_.set_step_id(0);
  ExpectRefused(Reason::kMissingField, "step.rows[2].step_id");
  row_.set_step_id(1);
  row_.clear_history_hash();
  ExpectRefused(Reason::kMissingField, "step.rows[2].history_hash");
  row_.set_history_hash(0);
  EXPECT_EQ(MustParse().intent.history_hash, 0u);
}

TEST_F(StepRowTest, StatelessSequenceRefusesHistory) {
  spec_.presence_penalty = 0;
  ExpectRefused(Reason::kContradiction, "step.rows[2].history_hash");
  row_.clear_history_hash();
  EXPECT_FALSE(MustParse().intent.history_hash.has_value());
  row_.set_truncate_to(3);
  ExpectRefused(Reason::kContradiction, "step.rows[2].truncate_to");
  row_.clear_truncate_to();
  row_.add_append_tokens(1);
  ExpectRefused(Reason::kContradiction, "step.rows[2].append_tokens");
}

TEST_F(StepRowTest, Ranges) {
  limits_.max_history = 100;
  row_.set_position(99);
  MustParse();
  for (const uint32_t position : {100u, 0xffffffffu}) {
    row_.set_position(position);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].position");
  }
  row_.set_position(0);
  for (const uint32_t salt : {65536u, 0xffffffffu}) {
    row_.set_draw_salt(salt);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].draw_salt");
  }
}

TEST_F(StepRowTest, AppendedTokens) {
  limits_.max_history = 2;
  row_.set_position(1);
  row_.add_append_tokens(0);
  row_.add_append_tokens(kLive - 1);
  MustParse();
  for (const uint32_t token : {kLive, kVocabulary, 0xffffffffu}) {
    row_.set_append_tokens(1, token);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].append_tokens[1]");
  }
  row_.set_append_tokens(1, 0);
  row_.add_append_tokens(0);
  ExpectRefused(Reason::kTooMany, "step.rows[2].append_tokens");
}

TEST_F(StepRowTest, MaskRow) {
  for (const uint32_t mask_row : {2u, 0xffffffffu}) {
    row_.mutable_mask()->set_mask_row(mask_row);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].mask.mask_row");
  }
  shape_.mask_payload.reset();
  shape_.mask_rows = 0;
  row_.mutable_mask()->set_mask_row(0);
  ExpectRefused(Reason::kMissingField, "step.masks");
  row_.mutable_mask()->clear_kind();
  ExpectRefused(Reason::kMissingField, "step.rows[2].mask.kind");
}

TEST_F(StepRowTest, AllowedTokensAreASet) {
  auto& tokens = *row_.mutable_mask()->mutable_allowed_tokens();
  EXPECT_TRUE(MustParse().masks.at(0).has_allowed_tokens) << "the empty set allows nothing";
  for (const uint32_t token : {7u, 3u, 7u, kLive - 1}) tokens.add_tokens(token);
  EXPECT_EQ(MustParse().masks.at(0).allowed_tokens, (std::vector<uint32_t>{3, 7, kLive - 1}));
  for (const uint32_t token : {kLive, 0xffffffffu}) {
    tokens.set_tokens(1, token);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].mask.allowed_tokens.tokens[1]");
  }
  tokens.set_tokens(1, 0);
  limits_.max_listed_tokens = 3;
  ExpectRefused(Reason::kTooMany, "step.rows[2].mask.allowed_tokens.tokens");
}

TEST_F(StepRowTest, CheckpointNeedsStatefulSampler) {
  row_.set_checkpoint("x");
  ExpectRefused(Reason::kContradiction, "step.rows[2].checkpoint");
}

TEST_F(StepRowTest, ChainOfDrafts) {
  v1::VerifyDraft& chain = *row_.mutable_verify_draft();
  ExpectRefused(Reason::kMissingField, "step.rows[2].verify_draft.draft_tokens");
  chain.add_draft_tokens(7);
  ExpectRefused(Reason::kMissingField, "step.rows[2].verify_draft.mode");
  chain.set_mode(v1::VERIFY_MODE_GREEDY);
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_draft.mode");
  spec_.parameters.greedy = true;
  EXPECT_EQ(MustParse().kind, RowPlan::Kind::kCompare);
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  chain.add_draft_tokens(kLive);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.draft_tokens[1]");
  chain.set_draft_tokens(1, 8);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].tensor_row");
  row_.set_tensor_row(1);
  const RowPlan plan = MustParse();
  EXPECT_EQ(plan.ahead, TokenTree::Chain({7, 8}));
  EXPECT_EQ(plan.positions(), 3u);
  chain.mutable_draft_tokens()->Resize(kMaxDraftTokens + 1, 0);
  ExpectRefused(Reason::kTooMany, "step.rows[2].verify_draft.draft_tokens");
}

TEST_F(StepRowTest, BlocksAreRefusedByName) {
  v1::VerifyDraft& chain = *row_.mutable_verify_draft();
  row_.set_tensor_row(1);
  chain.add_draft_tokens(7);
  chain.set_mode(v1::VERIFY_MODE_BLOCK);
  ExpectRefused(Reason::kMissingField, "step.rows[2].verify_draft.draft_row");
  v1::SparseProbabilities& drafter = *chain.add_sparse_probabilities();
  drafter.add_tokens(7);
  drafter.add_probabilities(1);
  EXPECT_EQ(MustParse().kind, RowPlan::Kind::kBlock);
  const auto expect_mode_refused = [&](auto change, auto back) {
    change();
    ExpectRefused(Reason::kContradiction, "step.rows[2].verify_draft.mode");
    back();
  };
  expect_mode_refused([&] { spec_.parameters.greedy = true; }, [&] { spec_.parameters.greedy = false; });
  expect_mode_refused(
      [&] {
        spec_.parameters.chain = {{kernels::StageKind::kMirostat2, {1 << 26, 1 << 28}}};
      },
      [&] { spec_.parameters.chain.clear(); });
  expect_mode_refused([&] { spec_.history.phases.emplace_back().options.parameters.greedy = true; },
                      [&] { spec_.history.phases.clear(); });
  expect_mode_refused([&] { spec_.receipts = true; }, [&] { spec_.receipts = false; });
  expect_mode_refused([&] { spec_.logprob_token_ids.resize(kernels::kMaxTopLogprobs); },
                      [&] { spec_.logprob_token_ids.clear(); });
  v1::VerifyTree& tree = *row_.mutable_verify_tree();
  tree.add_draft_tokens(7);
  tree.add_parents(-1);
  tree.set_mode(v1::VERIFY_MODE_BLOCK);
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_tree.mode");
}

TEST_F(StepRowTest, DraftProbabilities) {
  v1::VerifyDraft& chain = *row_.mutable_verify_draft();
  row_.set_tensor_row(0);
  chain.add_draft_tokens(7);
  chain.add_draft_tokens(8);
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  chain.set_draft_row(0);
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_draft.draft_row");
  chain.set_mode(v1::VERIFY_MODE_REJECTION);
  ExpectRefused(Reason::kMissingField, "step.draft_probabilities");
  shape_.draft_payload = 2;
  shape_.draft_rows = 2;
  EXPECT_EQ(MustParse().draft_row, 0u);
  for (const uint32_t row : {1u, 2u, 0xffffffffu}) {
    chain.set_draft_row(row);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.draft_row");
  }
  chain.set_draft_row(0);
  v1::SparseProbabilities& first = *chain.add_sparse_probabilities();
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_draft.sparse_probabilities");
  chain.clear_draft_row();
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.sparse_probabilities");
  v1::SparseProbabilities& second = *chain.add_sparse_probabilities();
  ExpectRefused(Reason::kMissingField, "step.rows[2].verify_draft.sparse_probabilities[0].tokens");
  first.add_tokens(7);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.sparse_probabilities[0].probabilities");
  first.add_probabilities(1);
  for (const uint32_t token : {9u, 8u}) second.add_tokens(token);
  for (const float q : {0.25f, 0.75f}) second.add_probabilities(q);
  const RowPlan plan = MustParse();
  EXPECT_EQ(plan.sparse[1].tokens, (std::vector<uint32_t>{8, 9}));
  EXPECT_EQ(plan.sparse[1].bits, (std::vector<uint32_t>{0x3f400000, 0x3e800000}));

  const std::string field = "step.rows[2].verify_draft.sparse_probabilities[1]";
  for (const float q : {-0.25f, 1.25f, std::numeric_limits<float>::quiet_NaN()}) {
    second.set_probabilities(0, q);
    ExpectRefused(Reason::kOutOfRange, field + ".probabilities[0]");
  }
  second.set_probabilities(0, 0.2605f);
  ExpectRefused(Reason::kOutOfRange, field + ".probabilities");
  second.set_probabilities(0, 0.2595f);
  MustParse();
  second.set_tokens(0, 8);
  ExpectRefused(Reason::kContradiction, field + ".tokens");
  second.set_tokens(0, 9);
  second.set_probabilities(0, 1);
  second.set_probabilities(1, -0.0f);
  ExpectRefused(Reason::kContradiction, field);
}

TEST_F(StepRowTest, TreeOfDrafts) {
  v1::VerifyTree& tree = *row_.mutable_verify_tree();
  row_.set_tensor_row(0);
  for (const uint32_t token : {5u, 6u, 5u}) tree.add_draft_tokens(token);
  tree.set_mode(v1::VERIFY_MODE_COUPLED);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_tree.parents");
  for (const int parent : {-1, -1, 0}) tree.add_parents(parent);
  const RowPlan plan = MustParse();
  EXPECT_EQ(plan.DepthOf(0), 0u);
  EXPECT_EQ(plan.DepthOf(2), 1u);
  EXPECT_EQ(plan.DepthOf(3), 2u);
  EXPECT_EQ(plan.FirstDraftAfter(0), 0u);
  EXPECT_EQ(plan.FirstDraftAfter(1), 2u);
  EXPECT_EQ(plan.FirstDraftAfter(2), std::nullopt);
  for (const int parent : {-2, 2, 3}) {
    tree.set_parents(2, parent);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_tree.parents[2]");
  }
  tree.set_parents(2, -1);
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_tree.draft_tokens[2]");
}

// One distribution for the root and one for each draft that others follow.
TEST_F(StepRowTest, TreeWithProbabilities) {
  const std::string path = "step.rows[2].verify_tree";
  v1::VerifyTree& tree = *row_.mutable_verify_tree();
  row_.set_tensor_row(0);
  for (const uint32_t token : {5u, 6u, 5u}) tree.add_draft_tokens(token);
  for (const int parent : {-1, -1, 1}) tree.add_parents(parent);
  tree.set_mode(v1::VERIFY_MODE_REJECTION);
  EXPECT_EQ(MustParse().kind, RowPlan::Kind::kCompare);
  tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
  ExpectRefused(Reason::kContradiction, path + ".draft_sampling");
  tree.clear_draft_sampling();
  tree.set_draft_row(0);
  ExpectRefused(Reason::kMissingField, path + ".draft_sampling");
  tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
  ExpectRefused(Reason::kMissingField, "step.draft_probabilities");
  shape_.draft_payload = 2;
  shape_.draft_rows = 3;
  tree.set_draft_row(1);
  const RowPlan dense = MustParse();
  EXPECT_EQ(dense.kind, RowPlan::Kind::kReject);
  EXPECT_EQ(dense.draft_row, 1u);
  EXPECT_FALSE(dense.with_replacement);
  EXPECT_EQ(dense.DistributionOf(0), 0u);
  EXPECT_EQ(dense.DistributionOf(2), 1u);
  tree.set_draft_row(2);
  ExpectRefused(Reason::kOutOfRange, path + ".draft_row");
  tree.set_draft_row(0);
  tree.set_mode(v1::VERIFY_MODE_COUPLED);
  ExpectRefused(Reason::kContradiction, path + ".draft_row");
  tree.set_mode(v1::VERIFY_MODE_REJECTION);
  v1::SparseProbabilities& root = *tree.add_sparse_probabilities();
  ExpectRefused(Reason::kContradiction, path + ".sparse_probabilities");
  tree.clear_draft_row();
  ExpectRefused(Reason::kOutOfRange, path + ".sparse_probabilities");
  v1::SparseProbabilities& second = *tree.add_sparse_probabilities();
  for (const uint32_t token : {5u, 7u}) root.add_tokens(token);
  for (v1::SparseProbabilities* const list : {&root, &second}) {
    while (list->tokens_size() < 2) list->add_tokens(5 + static_cast<uint32_t>(list->tokens_size()));
    for (const float q : {0.25f, 0.75f}) list->add_probabilities(q);
  }
  ExpectRefused(Reason::kContradiction, path + ".sparse_probabilities[0]");  // of draft 6
  root.set_tokens(1, 6);
  EXPECT_EQ(MustParse().sparse.size(), 2u);
  const uint64_t digest = MustParse().intent.options_digest;
  tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
  EXPECT_TRUE(MustParse().with_replacement);
  EXPECT_NE(MustParse().intent.options_digest, digest);
  tree.set_draft_tokens(1, 5);
  MustParse();
  tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
  ExpectRefused(Reason::kContradiction, path + ".draft_tokens[1]");
}

TEST_F(StepRowTest, MasksOfPositions) {
  v1::VerifyDraft& chain = *row_.mutable_verify_draft();
  row_.set_tensor_row(0);
  chain.add_draft_tokens(7);
  chain.set_mode(v1::VERIFY_MODE_COUPLED);
  chain.add_masks()->set_mask_row(1);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.masks");
  chain.add_masks()->mutable_allowed_tokens()->add_tokens(3);
  EXPECT_EQ(MustParse().masks.size(), 2u);
  chain.mutable_masks(0)->set_mask_row(2);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].verify_draft.masks[0].mask_row");
  row_.mutable_mask()->set_mask_row(0);
  ExpectRefused(Reason::kContradiction, "step.rows[2].verify_draft.masks");
}

TEST_F(StepRowTest, Scores) {
  v1::Score& score = *row_.mutable_score();
  ExpectRefused(Reason::kMissingField, "step.rows[2].score.tokens");
  score.add_tokens(kLive);
  ExpectRefused(Reason::kOutOfRange, "step.rows[2].score.tokens[0]");
  score.set_tokens(0, 1);
  score.add_tokens(2);
  const RowPlan plan = MustParse();
  EXPECT_EQ(plan.scored, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(plan.ahead, TokenTree::Chain({1}));
  score.mutable_tokens()->Resize(kMaxScoreTokens + 1, 0);
  ExpectRefused(Reason::kTooMany, "step.rows[2].score.tokens");
}

// The digest identifies retries: every field that may change the answer changes the digest, and nothing else does.
// Masks have their digest in mask_digest_test.cc.
TEST_F(StepRowTest, DigestSeesEveryOption) {
  row_.set_truncate_to(5);
  row_.add_append_tokens(1);
  const uint64_t digest = MustParse().intent.options_digest;
  EXPECT_EQ(MustParse().intent.options_digest, digest);
  const std::vector<std::pair<std::string, std::function<void(v1::StepRow*)>>> changes = {
      {"position", [](auto* r) { r->set_position(10); }},
      {"history_hash", [](auto* r) { r->set_history_hash(78); }},
      {"truncate_to", [](auto* r) { r->set_truncate_to(6); }},
      {"no truncate_to", [](auto* r) { r->clear_truncate_to(); }},
      {"append_tokens", [](auto* r) { r->set_append_tokens(0, 2); }},
      {"more append_tokens", [](auto* r) { r->add_append_tokens(1); }},
      {"draw_salt", [](auto* r) { r->set_draw_salt(1); }},
      {"a score", [](auto* r) { r->mutable_score()->add_tokens(1); }},
      {"drafts",
       [](auto* r) {
         r->mutable_verify_draft()->add_draft_tokens(1);
         r->mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
       }},
      {"other drafts",
       [](auto* r) {
         r->mutable_verify_draft()->add_draft_tokens(2);
         r->mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
       }},
      {"drafts to be rejected",
       [](auto* r) {
         r->mutable_verify_draft()->add_draft_tokens(1);
         r->mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
       }},
  };
  const v1::StepRow saved = row_;
  for (const auto& [name, change] : changes) {
    change(&row_);
    EXPECT_NE(MustParse().intent.options_digest, digest) << name;
    row_ = saved;
  }
  row_.set_step_id(6);
  row_.set_tensor_row(1);
  row_.set_request_id("b");
  EXPECT_EQ(MustParse().intent.options_digest, digest);
}

}  // namespace
}  // namespace sortition::service::step_row_test
