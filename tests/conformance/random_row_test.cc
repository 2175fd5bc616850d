// The random rows reach every case that they are meant to reach; otherwise comparisons with the reference would prove
// less than they seem to.
#include "tests/conformance/random_row.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <tuple>

#include "kernels/law/reference.h"

namespace sortition::kernels::random_row_test {
namespace {

TEST(RandomRows, CoverEveryResult) {
  std::map<RowFault, int> errors;
  std::array<int, 6> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const RandomRow row(seed, 300);
    const RowRequest& request = row.request();
    const RowOutput answer = law::SampleRowReference(request);
    ++errors[answer.error];
    met[0] += request.has_allowed_tokens && request.allowed_bits != nullptr;
    met[1] += !request.edits.empty() && answer.error == RowFault::kNone;
    met[2] += request.parameters->greedy;
    met[3] += answer.kept > 1 && answer.kept < 100;
    met[4] += answer.raw.rank > 1;
    met[5] += answer.processed.top.size() > 5;
  }
  EXPECT_EQ(errors.size(), 4u);
  for (const auto& [error, count] : errors) EXPECT_GE(count, 5) << int(error);
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 20) << i;
}

TEST(RandomRows, CoverEveryResultOfEveryTask) {
  std::map<RowFault, int> errors;
  std::map<std::tuple<RowTask, DraftDistribution::Form, bool>, int> tasks;
  std::array<int, 5> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomRow row(seed, 300);
    row.AskForMore();
    const RowRequest& request = row.request();
    const RowOutput answer = law::SampleRowReference(request);
    ++errors[answer.error];
    if (answer.error != RowFault::kNone) continue;
    ++tasks[{request.task, request.draft.form, answer.accepted}];
    met[0] += request.task == RowTask::kScore && request.parameters->processed_logprob && answer.processed.rank == 0;
    met[1] += request.task == RowTask::kScore && answer.processed.rank > 1;
    met[2] += answer.entropy.surplus > 0;
    met[3] += answer.kept_tokens.size() > 1;
    met[4] += answer.raw.requested.size() > 20;
  }
  EXPECT_EQ(errors.size(), 7u);
  for (const auto& [error, count] : errors) EXPECT_GE(count, 5) << int(error);
  EXPECT_EQ(tasks.size(), 8u);  // drawn, scored; of three kinds of drafts accepted and not
  for (const auto& [task, count] : tasks) EXPECT_GE(count, 20) << int(std::get<1>(task));
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 20) << i;
}

TEST(RandomRows, CoverBlocksAndLeastCounts) {
  std::array<int, 5> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomRow row(seed, 300, OptionsKind::kChained);
    row.AskForMore();
    RowRequest before = row.request();
    const std::vector<Stage> chain = row.request().parameters->chain;
    row.AskForBlock();
    row.KeepAtLeast();
    const RowOutput answer = law::SampleRowReference(row.request());
    if (answer.error != RowFault::kNone) continue;
    if (row.request().parameters->chain != chain) {
      RowParameters without = *row.request().parameters;
      without.chain = chain;
      before = row.request();
      before.parameters = &without;
      met[0] += law::SampleRowReference(before).kept != answer.kept;
    }
    if (row.request().survival == RowRequest::kNoBlock) continue;
    met[1] += answer.accepted;
    met[2] += !answer.accepted;
    met[3] += answer.survival > 0 && answer.survival < RowRequest::kCertainSurvival;
    met[4] += answer.survival == RowRequest::kCertainSurvival;
  }
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 10) << i;
}

TEST(RandomRows, CoverRounds) {
  std::array<int, 7> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomRow row(seed, 300, OptionsKind::kChained);
    row.AskForMore();
    row.AskForRounds();
    const RowRequest& request = row.request();
    if (request.rivals.empty()) continue;
    const RowOutput answer = law::SampleRowReference(request);
    met[0] += answer.error == RowFault::kDraftImpossible;
    if (answer.error != RowFault::kNone) continue;
    met[1] += request.draft.with_replacement;
    met[2] += !request.draft.with_replacement;
    met[3] += !answer.accepted;
    met[4] += answer.accepted && answer.token == request.given;
    met[5] += answer.accepted && answer.token == request.rivals[0];
    met[6] += answer.accepted && request.rivals.size() > 1 && answer.token == request.rivals[1];
  }
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 5) << i;
}

// The random chains meet every stage, and every stage meets something to drop.
TEST(ChainRows, CoverEveryStage) {
  std::array<int, kStageKinds> met = {};
  std::array<int, 2> outcomes = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const RandomRow row(seed, 300, OptionsKind::kChained);
    const RowOutput answer = law::SampleRowReference(row.request());
    for (const Stage& stage : row.request().parameters->chain) ++met[size_t(stage.kind)];
    outcomes[0] += answer.sampler_state != 0 && answer.sampler_state != row.request().sampler_state;
    outcomes[1] += answer.kept > 1 && answer.kept < 100;
  }
  for (size_t kind = 0; kind < met.size(); ++kind) EXPECT_GE(met[kind], 50) << kind;
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_GE(outcomes[i], 100) << i;
}

}  // namespace
}  // namespace sortition::kernels::random_row_test
