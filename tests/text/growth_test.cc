// Work that a client can make with few bytes: it grows with the history no faster than linearly.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "service/text/look_ahead.h"
#include "service/text/text.h"
#include "service/wire/open_request.h"

namespace sortition::service::growth_test {
namespace {

constexpr uint32_t kManyTokens = 1'000'000;

std::shared_ptr<SequenceSpec> GrowingSpec() {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = kManyTokens;
  return spec;
}

std::shared_ptr<SequenceSpec> PenaltySpec() {
  auto spec = GrowingSpec();
  spec->frequency_penalty = 0.1f;
  return spec;
}

// Returns different tokens in random order.
std::vector<uint32_t> DifferentTokens(uint32_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937(1));
  return tokens;
}

// Returns the time of the processor that `run` took.
double Seconds(const std::function<void()>& run) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begun = now();
  run();
  return now() - begun;
}

// Returns the least of three runs.
double LeastSeconds(const std::function<void()>& run) { return std::min({Seconds(run), Seconds(run), Seconds(run)}); }

// Compares the times of sizes of which one is 16 times the other; 256 times the time would be quadratic. Caches make
// some of the difference.
void ExpectNotQuadratic(uint32_t size, const std::function<std::function<void()>(uint32_t)>& make) {
  const double small = LeastSeconds(make(size));
  const double large = LeastSeconds(make(16 * size));
  EXPECT_LT(large, 100 * small);
}

TEST(Growth, CountsOfDifferentTokensAreBuiltInTime) {
  ExpectNotQuadratic(50'000, [](uint32_t size) {
    return [tokens = DifferentTokens(size)] { Text::Build(PenaltySpec(), tokens, 0, 64); };
  });
}

// No piece of an open has to move what the pieces before it have counted.
TEST(Growth, PiecesOfAnOpenTakeTheSameTime) {
  constexpr size_t kPiece = 4096;
  const std::vector<uint32_t> tokens = DifferentTokens(200 * kPiece);
  double least_worst = 1e9, median = 0;
  for (int run = 0; run < 3; ++run) {
    Text::Builder builder(PenaltySpec(), 0, 64);
    std::vector<double> times;
    for (size_t at = 0; at < tokens.size(); at += kPiece) {
      times.push_back(Seconds([&] { builder.Add({tokens.data() + at, kPiece}); }));
    }
    std::ranges::sort(times);
    median = std::max(median, times[times.size() / 2]);
    least_worst = std::min(least_worst, times.back());
  }
  EXPECT_LT(least_worst, 16 * median);
}

// The pieces in which the list of edits is made add up to all edits of a history, and no piece is long.
TEST(Growth, ListOfAnOpenIsMadeInPieces) {
  const auto spec = std::make_shared<SequenceSpec>(*PenaltySpec());
  for (uint32_t token = 0; token < kManyTokens; token += 1000) {
    spec->listed_edits.push_back({.token = token, .flags = kernels::LogitEdit::kBanned});
  }
  const std::vector<uint32_t> tokens = DifferentTokens(900'000, 50'000);
  Text::Builder builder(spec, 0, 64);
  builder.Add(tokens);
  int pieces = 0;
  double worst = 0;
  const double all = Seconds([&] {
    for (bool is_done = false; !is_done; ++pieces) {
      worst = std::max(worst, Seconds([&] { is_done = !builder.Prepare(*spec); }));
    }
  });
  EXPECT_EQ(pieces, 14);
  EXPECT_LT(worst, all / 2);
  const auto text = builder.Finish(spec);
  const std::vector<kernels::LogitEdit>& edits = text->counts().edits();
  ASSERT_EQ(edits.size(), 900'000u + 100);
  for (size_t i = 0; i < edits.size(); ++i) {
    const kernels::LogitEdit& edit = edits[i];
    ASSERT_EQ(edit.token, i < 50 ? 1000 * i : i < 900'050 ? 49'950 + i : 950'000 + 1000 * (i - 900'050));
    ASSERT_EQ((edit.flags & kernels::LogitEdit::kBanned) != 0, edit.token % 1000 == 0);
    ASSERT_EQ(edit.penalty != 0, i >= 50 && i < 900'050);
  }
}

// A history is checked faster than it is counted.
TEST(Growth, TokensOfAnOpenAreCheckedInTime) {
  const std::vector<uint32_t> tokens = DifferentTokens(kManyTokens);
  const auto spec = PenaltySpec();
  const HistoryAsk ask{tokens, 0, kManyTokens, true};
  const double checked =
      LeastSeconds([&] { EXPECT_FALSE(CheckHistory(ask, *spec, Limits(), "open.history").has_value()); });
  const double counted = LeastSeconds([&] { Text::Builder(spec, 0, 64).Add(tokens); });
  EXPECT_LT(checked, counted);
}

// A row that cuts thousands of tokens off and appends others moves the counts once.
TEST(Growth, RewriteMovesCountsOnce) {
  const auto time = [](uint32_t rewritten) {
    const std::shared_ptr<Text> state = Text::Build(PenaltySpec(), DifferentTokens(800'000), 0, 4096);
    const std::vector<uint32_t> append = DifferentTokens(rewritten, 900'000);
    return LeastSeconds([&] {
      const auto undo = state->Rewrite(800'000 - rewritten, append);
      state->LendEdits();
      state->EndLoan();
      state->Revert(undo);
      state->LendEdits();
      state->EndLoan();
    });
  };
  EXPECT_LT(time(4000), 400 * time(1));  // 4000 moves would take thousands of times as long
}

// In an index of n-grams of one token, every token of the history follows one context.
TEST(Growth, FollowersOfOneContextAreFoundInTime) {
  const auto spec = GrowingSpec();
  spec->history.no_repeat_ngram = 1;
  ExpectNotQuadratic(5000, [&](uint32_t size) {
    return [spec, tokens = DifferentTokens(size)] { Text::Build(spec, tokens, 0, 64)->Rewrite(1, {}); };
  });
}

// A fork, cut anywhere, and the first steps after it share the index, which takes far longer to make.
TEST(Growth, ForkSharesTheIndex) {
  constexpr uint32_t kTokens = 256'000;
  const auto spec = GrowingSpec();
  spec->history.no_repeat_ngram = 3;
  std::shared_ptr<Text> parent;
  const double made = LeastSeconds([&] { parent = Text::Build(spec, DifferentTokens(kTokens), 0, 64); });
  parent->Fork(spec, kTokens);
  for (const uint32_t part : {0u, 1u, 2u, 4u}) {
    const double forked = LeastSeconds([&] {
      const auto child = parent->Fork(spec, kTokens / 4 * part);
      child->Append(5);
      child->LendEdits();
      child->EndLoan();
    });
    EXPECT_LT(forked, made / 20) << part;
  }
}

// Returns the time in which a row sees the edits of all its positions, one after the other.
double SecondsInTurn(const std::shared_ptr<const SequenceSpec>& spec, const std::vector<uint32_t>& history,
                     uint32_t drafts) {
  const std::shared_ptr<Text> state = Text::Build(spec, history, 0, 64);
  const TokenTree tree = TokenTree::Chain([&] {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < drafts; ++i) tokens.push_back(900'000 + i % 2);
    return tokens;
  }());
  return LeastSeconds([&] {
    size_t edits = 0;
    for (const PositionView& view : LookAhead(state.get(), tree, EditsUse::kInTurn)) edits += (*view.edits).size();
    state->EndLoan();
    EXPECT_GE(edits, drafts * spec->penalises() * history.size());
  });
}

TEST(Growth, DraftsInTurnShareOneListOfEdits) {
  const std::vector<uint32_t> history = DifferentTokens(400'000);
  EXPECT_LT(SecondsInTurn(PenaltySpec(), history, 64), 8 * SecondsInTurn(PenaltySpec(), history, 1));
}

// Drafts that begin and end a phase in turn.
TEST(Growth, PhasesInTurnCountOnce) {
  const auto spec = PenaltySpec();
  Phase& phase = spec->history.phases.emplace_back();
  phase.begin = {900'000};
  phase.end = {900'001};
  phase.options.frequency_penalty = 0.5f;
  const std::vector<uint32_t> history = DifferentTokens(400'000);
  EXPECT_LT(SecondsInTurn(spec, history, 64), 8 * SecondsInTurn(spec, history, 2));
}

// Each position bans them, and none is sorted or copied again.
TEST(Growth, StopTokensHeldBackAreMerged) {
  const auto spec = [](uint32_t stop_tokens) {
    auto with = GrowingSpec();
    with->history.min_tokens = 100;
    with->history.stop_tokens.resize(stop_tokens);
    std::iota(with->history.stop_tokens.begin(), with->history.stop_tokens.end(), 0u);
    return with;
  };
  EXPECT_LT(SecondsInTurn(spec(64'000), {1, 2, 3}, 64), 64 * SecondsInTurn(spec(4000), {1, 2, 3}, 64));
}

// A text of one token, and breakers that begin with it.
TEST(Growth, BreakersOfOneBeginningAreFoundInTime) {
  const auto time = [](uint32_t breakers) {
    const auto spec = GrowingSpec();
    DryOptions& dry = spec->history.dry;
    dry.multiplier = 1;
    dry.allowed_length = 1;
    dry.terms.assign(30, 1);
    dry.longest_breaker = 2;
    for (uint32_t i = 0; i < breakers; ++i) dry.breakers.push_back({1, 2 + i});
    dry.breaker_tree = BreakerTree(dry.breakers);
    const std::shared_ptr<Text> state = Text::Build(spec, std::vector<uint32_t>(5000, 1), 0, 64);
    return LeastSeconds([&] {
      for (int step = 0; step < 100; ++step) state->LendEdits();
      state->EndLoan();
    });
  };
  EXPECT_LT(time(32'000), 60 * time(10));
}

// A text of one token, and breakers that nearly stand at each of its positions, read in either direction.
TEST(Growth, LongBreakersAreFoundInLinearTime) {
  const auto time = [](uint32_t length) {
    const auto spec = GrowingSpec();
    DryOptions& dry = spec->history.dry;
    dry.multiplier = 1;
    dry.allowed_length = 1;
    dry.terms.assign(30, 1);
    dry.longest_breaker = length;
    dry.breakers.assign(2, TokenString(length, 1));
    dry.breakers[0].back() = 2;
    dry.breakers[1].front() = 2;
    dry.breaker_tree = BreakerTree(dry.breakers);
    const std::shared_ptr<Text> state = Text::Build(spec, std::vector<uint32_t>(5000, 1), 0, 64);
    return LeastSeconds([&] {
      for (int step = 0; step < 100; ++step) state->LendEdits();
      state->EndLoan();
    });
  };
  EXPECT_LT(time(1000), 200 * time(10));
}

}  // namespace
}  // namespace sortition::service::growth_test
