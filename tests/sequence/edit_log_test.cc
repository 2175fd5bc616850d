// The names of edit lists: after any events in sequences, a device that trusts the names has the right edits.
#include "service/sequence/edit_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "service/request/parameters.h"
#include "service/sequence/row_of.h"
#include "service/sequence/sequence.h"
#include "tests/support/plain_edit_cache.h"
#include "tests/support/scale.h"

namespace sortition::service {
namespace {

using kernels::EditOrigin;
using kernels::LogitEdit;
using testing::PlainEditCache;

TEST(EditLog, CountsVersionsKnowsLastTokens) {
  EditLog edit_log = EditLog::OfNewList();
  EXPECT_NE(edit_log.origin().list, EditLog::OfNewList().origin().list);
  EXPECT_EQ(EditLog().origin().list, 0u);
  for (uint32_t token = 0; token < 100; ++token) {
    EXPECT_EQ(edit_log.origin().version, token);
    EXPECT_EQ(edit_log.origin().changed.size(), std::min(token, EditLog::kTokens));
    edit_log.Push(token);
    EXPECT_EQ(edit_log.origin().changed.back(), token);
  }
  EXPECT_EQ(edit_log.origin().changed.front(), 100 - EditLog::kTokens);
}

TEST(EditLog, ChangesAfterLeaveAreAhead) {
  EditLog edit_log = EditLog::OfNewList();
  edit_log.Push(5);
  edit_log.Leave();
  EXPECT_EQ(edit_log.origin().ahead, 0u);
  edit_log.Push(6);
  edit_log.Leave();
  edit_log.Push(7);
  EXPECT_EQ(edit_log.origin().version, 1u);
  EXPECT_EQ(edit_log.origin().ahead, 2u);
  EXPECT_EQ(edit_log.origin().changed.size(), 3u);
}

constexpr uint32_t kTokens = 40;

struct EditOptions {
  std::string name;
  std::function<void(v1::SamplingParameters*)> set;
};

std::vector<EditOptions> AllEditOptions() {
  return {
      {"penalties", [](auto* p) { p->set_repetition_penalty(1.2f), p->set_frequency_penalty(0.1f); }},
      {"window", [](auto* p) { p->set_presence_penalty(0.5f), p->mutable_penalty_scope()->set_window(9); }},
      {"no_penalties", [](auto* p) { p->set_no_repeat_ngram_size(2); }},
      {"dry",
       [](auto* p) {
         p->mutable_dry()->set_multiplier(1);
         p->mutable_dry()->set_allowed_length(1);
         p->set_frequency_penalty(0.3f);
       }},
      {"words",
       [](auto* p) {
         for (const uint32_t token : {11u, 2u}) p->add_stop_token_ids(token);
         p->set_min_tokens(20);
         v1::TokenSequence& word = *p->add_bad_words();
         for (const uint32_t token : {1u, 2u}) word.add_tokens(token);
         p->set_presence_penalty(-0.5f);
         v1::LogitBias& bias = *p->add_logit_bias();
         bias.set_token(2);
         bias.set_bias(1);
       }},
      {"phases",
       [](auto* p) {
         p->set_frequency_penalty(0.1f);
         v1::Phase& one = *p->add_phases();
         one.add_begin(1);
         one.add_end(2);
         one.set_max_tokens(9);
         one.mutable_parameters()->set_frequency_penalty(0.5f);
         v1::Phase& other = *p->add_phases();
         other.add_begin(3);
         other.add_end(1);
         other.mutable_parameters()->add_banned_token_ids(4);
       }},
  };
}

std::shared_ptr<const SequenceSpec> SpecWith(const v1::SamplingParameters& parameters) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = kTokens;
  const auto refusal = CompileParameters(parameters, Limits(), "p", spec.get());
  EXPECT_FALSE(refusal.has_value()) << refusal->field << refusal->message;
  return spec;
}

// A step's views when it began, and their edits then.
struct Seen {
  std::shared_ptr<const SequenceSpec> spec;
  PositionViews views;
  std::vector<std::vector<LogitEdit>> edits;
};

class EditNames : public ::testing::TestWithParam<EditOptions> {
 protected:
  uint32_t Below(size_t end) { return static_cast<uint32_t>(random_() % end); }
  uint32_t Token() { return Below(3) == 0 ? Below(kTokens) : Below(5); }
  std::vector<uint32_t> SomeTokens(uint32_t below) {
    std::vector<uint32_t> tokens(Below(below));
    for (uint32_t& token : tokens) token = Token();
    return tokens;
  }
  TokenTree Tree() {
    TokenTree tree;
    tree.tokens = SomeTokens(Below(4) == 0 ? 20 : 5);
    const bool is_chain = Below(2) == 0;
    for (size_t i = 0; i < tree.tokens.size(); ++i) {
      tree.parents.push_back(is_chain ? static_cast<int32_t>(i) - 1 : static_cast<int32_t>(Below(i + 1)) - 1);
    }
    return tree;
  }

  // A view's edits equal those of a sequence that has advanced there.
  void CheckView(SequenceState* state, const TokenTree& tree, const Seen& seen) {
    const size_t view = Below(seen.views.size());
    const auto gone = state->Fork(seen.spec, state->position());
    ASSERT_NE(gone, nullptr);
    std::vector<uint32_t> way;
    for (auto at = static_cast<int32_t>(view) - 1; at >= 0; at = tree.parents[static_cast<size_t>(at)]) {
      way.push_back(tree.tokens[static_cast<size_t>(at)]);
    }
    std::ranges::reverse(way);
    gone->Rewrite(std::nullopt, way);
    ASSERT_EQ(*gone->LendEdits(), seen.edits[view]) << "view " << view;
  }

  // A device runs the rows in some order, maybe not all of them, and maybe late.
  void Run(const Seen& seen) {
    std::vector<size_t> order(seen.views.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (Below(3) == 0) std::ranges::shuffle(order, random_);
    PlainEditCache* device = &devices_[Below(devices_.size())];
    for (const size_t i : order) {
      if (Below(10) == 0) device = &devices_[Below(devices_.size())];
      const kernels::RowRequest row = RowOf(*seen.spec, &seen.views[i], 1, 0);
      ASSERT_TRUE(std::ranges::equal(row.edits, seen.edits[i])) << "what was lent has changed";
      ASSERT_EQ(device->EditsOf(row), seen.edits[i]) << "view " << i;
      const EditOrigin& origin = row.edit_origin;
      if (origin.ahead != 0) continue;
      const auto [known, is_new] = lists_.try_emplace({origin.list, origin.version}, seen.edits[i]);
      ASSERT_EQ(known->second, seen.edits[i]) << "one name of two lists";
    }
  }

  std::mt19937 random_{17};
  std::array<PlainEditCache, 3> devices_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<LogitEdit>> lists_;  // by name and version
};

TEST_P(EditNames, LeadToTheEditsUnderRandomSteps) {
  v1::SamplingParameters parameters;
  GetParam().set(&parameters);
  const auto spec = SpecWith(parameters);
  std::vector<std::unique_ptr<SequenceState>> family;
  family.push_back(SequenceState::Build(spec, SomeTokens(30), 0, 64));
  std::deque<Seen> late;
  for (uint64_t step = 0; step < testing::Scaled(6000); ++step) {
    SequenceState& one = *family[Below(family.size())];
    const uint32_t deepest = std::min(one.position() - one.lowest_truncation(), 12u);
    const std::vector<uint32_t> append = SomeTokens(4);
    std::optional<uint32_t> cut;
    if (Below(4) == 0) cut = one.position() - Below(deepest + 1);
    // Follows Sequence: the step's rewrites, its views, and its end; or a new owner, who reverts them.
    const SequenceState::Undo undo = one.Rewrite(cut, Below(4) == 0 ? append : std::vector<uint32_t>());
    if (Below(20) == 0) {
      one.Revert(undo);  // the step was for another history
      continue;
    }
    const TokenTree tree = Tree();
    Seen seen{std::make_shared<SequenceSpec>(one.spec()), LookAhead(&one, tree), {}};
    for (const PositionView& view : seen.views) seen.edits.push_back(*view.edits);
    if (Below(3) == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckView(&one, tree, seen)) << "step " << step;
    }
    const uint32_t fate = Below(10);
    if (fate == 0) {
      one.LeaveLoan();
      one.Revert(undo);
      late.push_back(std::move(seen));
    } else {
      ASSERT_NO_FATAL_FAILURE(Run(seen)) << "step " << step;
      if (fate == 1) {
        ASSERT_NO_FATAL_FAILURE(Run(seen)) << "again, in step " << step;
      }
      seen.views.clear();
      one.EndLoan();
      if (fate == 2) {
        one.Revert(undo);
      } else {
        for (uint32_t tokens = 1 + Below(seen.edits.size()); tokens > 0; --tokens) one.Append(Token());
      }
    }
    if (!late.empty() && Below(12) == 0) {
      ASSERT_NO_FATAL_FAILURE(Run(late.front())) << "late, in step " << step;
      late.pop_front();
    }
    if (step % 60 == 30) {
      v1::SamplingParameters other = parameters;
      if (step % 120 == 30) other.set_presence_penalty(1);
      auto child = one.Fork(SpecWith(other), one.position() - Below(deepest + 1));
      if (child != nullptr) family.push_back(std::move(child));
    } else if (step % 60 == 50) {
      auto imported = SequenceState::FromSnapshot(std::make_shared<SequenceSpec>(one.spec()), one.Snapshot(), 64);
      ASSERT_NE(imported, nullptr);
      family.push_back(std::move(imported));
    }
    if (family.size() > 6) family.erase(family.begin() + Below(family.size()));
  }
  uint64_t changed = 0;
  uint64_t changed_ahead = 0;
  for (const PlainEditCache& device : devices_) {
    changed += device.changed();
    changed_ahead += device.changed_ahead();
  }
  EXPECT_GT(changed_ahead, testing::Scaled(1000));
  EXPECT_GT(changed - changed_ahead, testing::Scaled(1000));
}

INSTANTIATE_TEST_SUITE_P(All, EditNames, ::testing::ValuesIn(AllEditOptions()),
                         [](const auto& info) { return info.param.name; });

// Steps of one sequence: consecutive, aborted, retried, and taken over while a device still reads.
TEST(EditLog, FollowsSequencesSteps) {
  v1::SamplingParameters parameters;
  parameters.set_repetition_penalty(1.3f);
  const auto spec = SpecWith(parameters);
  const SequenceOwner first{.epoch = 1};
  Sequence sequence(first, spec, 64);
  auto state = SequenceState::Build(spec, std::vector<uint32_t>{1, 2, 3}, 3, 64);
  const auto opened = std::get<SequencePosition>(sequence.TakeOver(first, spec, &state));
  StepIntent intent;
  intent.step_id = 1;
  intent.position = opened.position;
  intent.history_hash = opened.history_hash;
  PlainEditCache device;
  const auto begin = [&](const SequenceOwner& owner) {
    return std::get<StepGrant>(sequence.Begin(owner, intent, TokenTree::Chain({7, 8})));
  };
  const auto run = [&](const StepGrant& grant) {
    for (const PositionView& view : grant.views) {
      const kernels::RowRequest row = RowOf(*spec, &view, 1, 0);
      EXPECT_TRUE(std::ranges::equal(device.EditsOf(row), row.edits));
    }
  };
  StepGrant grant = begin(first);
  run(grant);
  sequence.Abort(grant.ticket);
  grant = begin(first);
  EXPECT_EQ(RowOf(*spec, &grant.views[0], 1, 0).edit_origin.version, 0u) << "an aborted step has rewritten nothing";
  run(grant);
  kernels::RowOutput answer;
  answer.token = 9;
  const auto answered = std::get<RowResult>(sequence.Commit(grant.ticket, RowResult::Drawn(answer)));
  intent.step_id = 2;
  intent.position = 4;
  intent.history_hash = answered.history_hash;
  grant = begin(first);
  run(grant);
  EXPECT_EQ(device.changed(), 8u) << "all but the first row's";
  // The former owner's rows run after the next owner's.
  const SequenceOwner second{.epoch = 2};
  ASSERT_TRUE(std::holds_alternative<SequencePosition>(sequence.TakeOver(second, spec, nullptr)));
  const StepGrant left = std::move(grant);
  grant = begin(second);
  run(grant);
  run(left);
  sequence.Abort(grant.ticket);
}

TEST(EditLog, ForcedTokenRowHasNoEdits) {
  v1::SamplingParameters parameters;
  parameters.set_repetition_penalty(1.3f);
  v1::Phase& phase = *parameters.add_phases();
  phase.set_max_tokens(0);
  phase.add_then(7);
  const auto spec = SpecWith(parameters);
  const auto state = SequenceState::Build(spec, std::vector<uint32_t>{1, 2, 3}, 3, 64);
  const PositionViews views = LookAhead(state.get(), {});
  kernels::RowRequest row = RowOf(*spec, &views[0], 3, 0);
  EXPECT_NE(row.edit_origin.list, 0u);
  ForceToken(&views[0], &row);
  EXPECT_TRUE(row.edits.empty());
  EXPECT_EQ(row.edit_origin.list, 0u);
}

}  // namespace
}  // namespace sortition::service
