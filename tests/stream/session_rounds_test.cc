// Trees with a drafter's probabilities on a stream: the results equal the law's reference at each position.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "tests/support/judged_rows.h"
#include "tests/support/scale.h"

namespace sortition::service::session_rounds_test {
namespace {

constexpr uint32_t kDrafts = 6;

// A drafter's distribution at one place, and the drafts that follow there.
struct Place {
  std::vector<float> q;
  std::vector<uint32_t> tokens, bits;  // tokens with q above 0
  std::vector<uint32_t> drafts;        // indexes, in order
};

class SessionRounds : public JudgedRows {
 protected:
  // Probabilities that are near the target's; every second distribution gives most tokens none.
  static Place Drafter(std::mt19937_64* random, const std::string& logits) {
    Place place;
    place.q.resize(kModelVocabulary);
    std::memcpy(place.q.data(), logits.data(), logits.size());
    const bool is_short = (*random)() % 2 == 0;
    float sum = 0;
    for (float& x : place.q) {
      x = is_short && (*random)() % 4 != 0 ? 0 : std::exp(x + float((*random)() % 64) / 32);
      sum += x;
    }
    if (sum == 0) sum = place.q[3] = 1;
    for (uint32_t id = 0; id < kModelVocabulary; ++id) {
      place.q[id] /= sum;
      if (place.q[id] == 0) continue;
      place.tokens.push_back(id);
      place.bits.push_back(std::bit_cast<uint32_t>(place.q[id]));
    }
    return place;
  }

  // Draws a draft as the place's drafter does; nothing if it has no other left.
  static std::optional<uint32_t> Draft(std::mt19937_64* random, const Place& place, const v1::VerifyTree& tree) {
    std::vector<float> left = place.q;
    if (tree.draft_sampling() == v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT) {
      for (const uint32_t draft : place.drafts) left[tree.draft_tokens(static_cast<int>(draft))] = 0;
    }
    if (*std::ranges::max_element(left) == 0) return std::nullopt;
    return std::discrete_distribution<uint32_t>(left.begin(), left.end())(*random);
  }

  // Adds a random tree at `position` to the step. Returns its places by position.
  static std::map<uint32_t, Place> AddTree(std::mt19937_64* random, uint64_t n, uint32_t position, StepBuilder* step) {
    v1::StepRow& row = step->AddRow("a", n, position, Logits(10 * n));
    v1::VerifyTree& tree = *row.mutable_verify_tree();
    tree.set_mode(v1::VERIFY_MODE_REJECTION);
    tree.set_draft_sampling(n % 2 == 0 ? v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT : v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
    std::map<uint32_t, Place> places;
    for (uint32_t i = 0; i < kDrafts; ++i) {
      const auto at = (*random)() % 2 == 0 ? 0 : static_cast<uint32_t>((*random)() % (i + 1));
      const auto place = places.try_emplace(at, Drafter(random, Logits(10 * n + at))).first;
      const std::optional<uint32_t> draft = Draft(random, place->second, tree);
      if (!draft) break;
      place->second.drafts.push_back(i);
      tree.add_draft_tokens(*draft);
      tree.add_parents(static_cast<int32_t>(at) - 1);
      step->AddTensorRow(Logits(10 * n + i + 1));
    }
    std::erase_if(places, [](const auto& place) { return place.second.drafts.empty(); });
    const bool is_dense = n % 4 < 2;
    if (is_dense) step->AddDraftRow(std::vector<float>(kModelVocabulary, 1.0f / kModelVocabulary));  // another row's
    if (is_dense) tree.set_draft_row(1);
    for (const auto& [at, place] : places) {
      if (is_dense) {
        step->AddDraftRow(place.q);
        continue;
      }
      v1::SparseProbabilities& sparse = *tree.add_sparse_probabilities();
      for (const uint32_t token : place.tokens) {
        sparse.add_tokens(token);
        sparse.add_probabilities(place.q[token]);
      }
    }
    return places;
  }

  // Returns the reference's answer at a place.
  static kernels::RowOutput Judge(const PlainSequence& plain, const v1::VerifyTree& tree, const Place& place,
                                  const std::string& logits, uint32_t position) {
    PlainSequence::Row row;
    row.logits = logits;
    row.task = kernels::RowTask::kVerify;
    row.draft.with_replacement = tree.draft_sampling() == v1::DRAFT_SAMPLING_WITH_REPLACEMENT;
    row.draft.form = kernels::DraftDistribution::Form::kSparse;
    row.draft.sparse_tokens = place.tokens;
    row.draft.sparse_bits = place.bits;
    row.given = tree.draft_tokens(static_cast<int>(place.drafts[0]));
    for (size_t i = 1; i < place.drafts.size(); ++i) {
      row.rivals.push_back(tree.draft_tokens(static_cast<int>(place.drafts[i])));
    }
    return plain.Answer(row, position);
  }
};

TEST_F(SessionRounds, EqualsReferenceEverywhere) {
  open_.mutable_parameters()->set_top_k(30);
  worker_.MustOpen(open_);
  const PlainSequence plain(open_);
  std::mt19937_64 random(86);
  std::array<uint64_t, 4> lengths = {};
  uint64_t later = 0;  // accepted drafts that were not the first of their place
  for (uint64_t n = 1; n <= testing::Scaled(2'000); ++n) {
    const auto position = static_cast<uint32_t>(n * 10);
    StepBuilder step(n, kModelVocabulary);
    const std::map<uint32_t, Place> places = AddTree(&random, n, position, &step);
    const v1::VerifyTree tree = step.step().rows(0).verify_tree();
    const v1::VerifyResult verify = RunVerify(step);
    uint32_t at = 0;
    int depth = 0;
    for (;; ++depth) {
      ASSERT_LT(depth, verify.positions_size());
      const std::string logits = Logits(10 * n + at);
      const auto place = places.find(at);
      const uint32_t where = position + static_cast<uint32_t>(depth);
      const kernels::RowOutput due = place == places.end() ? plain.Answer({.logits = logits}, where)
                                                           : Judge(plain, tree, place->second, logits, where);
      ASSERT_EQ(verify.positions(depth).token(), due.token) << n;
      ASSERT_EQ(verify.positions(depth).processed().SerializeAsString(),
                plain.Encode(due).processed().SerializeAsString());
      if (place == places.end() || !due.accepted) break;
      const auto draft = std::ranges::find_if(place->second.drafts, [&](uint32_t index) {
        return tree.draft_tokens(static_cast<int>(index)) == due.token;
      });
      ASSERT_EQ(verify.path(depth), *draft);
      later += *draft != place->second.drafts[0];
      at = *draft + 1;
    }
    EXPECT_EQ(verify.positions_size(), depth + 1);
    EXPECT_EQ(verify.accepted(), static_cast<uint32_t>(depth));
    EXPECT_EQ(verify.path_size(), depth);
    ++lengths[std::min<size_t>(verify.accepted(), 3)];
    worker_.LetLeave();
  }
  for (const uint64_t count : lengths) EXPECT_GT(count, 0u);
  EXPECT_GT(later, testing::Scaled(100));
}

// One draft at each place: the answer equals that for the same sequence of drafts.
TEST_F(SessionRounds, TreeOfOneBranchIsSequence) {
  worker_.MustOpen(open_);
  std::mt19937_64 random(87);
  uint32_t accepted = 0;
  for (uint64_t n = 1; n <= 50; ++n) {
    v1::VerifyResult results[2];
    const std::vector<float> q = Drafter(&random, Logits(n)).q;
    const auto draft = static_cast<uint32_t>(std::ranges::max_element(q) - q.begin());
    for (uint64_t form = 0; form < 2; ++form) {
      StepBuilder step(2 * n + form, kModelVocabulary);
      v1::StepRow& row = step.AddRow("a", 2 * n + form, static_cast<uint32_t>(n), Logits(n));
      step.AddTensorRow(Logits(n + 1));
      const uint32_t at = step.AddDraftRow(q);
      if (form == 0) {
        row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
        row.mutable_verify_draft()->add_draft_tokens(draft);
        row.mutable_verify_draft()->set_draft_row(at);
      } else {
        row.mutable_verify_tree()->set_mode(v1::VERIFY_MODE_REJECTION);
        row.mutable_verify_tree()->add_draft_tokens(draft);
        row.mutable_verify_tree()->add_parents(-1);
        row.mutable_verify_tree()->set_draft_row(at);
        row.mutable_verify_tree()->set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
      }
      results[form] = RunOne(step).verify();
      results[form].clear_path();
    }
    EXPECT_EQ(results[0].SerializeAsString(), results[1].SerializeAsString());
    accepted += results[0].accepted();
  }
  EXPECT_GT(accepted, 5u);
  EXPECT_LT(accepted, 50u);
}

TEST_F(SessionRounds, ImpossibleRivalFailsRow) {
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, F32Peak(kModelVocabulary, 1));
  v1::VerifyTree& tree = *row.mutable_verify_tree();
  tree.set_mode(v1::VERIFY_MODE_REJECTION);
  tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
  for (const uint32_t token : {4u, 5u}) {
    tree.add_draft_tokens(token);
    tree.add_parents(-1);
    step.AddTensorRow(F32Peak(kModelVocabulary, 2));
  }
  std::vector<float> q(kModelVocabulary);
  q[4] = 1;
  tree.set_draft_row(step.AddDraftRow(q));
  const v1::RowResult result = RunOne(step);
  ExpectError(result, Reason::kContradiction, "step.rows[0]");
  EXPECT_NE(result.error().message().find("token id 5"), std::string::npos);
}

}  // namespace
}  // namespace sortition::service::session_rounds_test
