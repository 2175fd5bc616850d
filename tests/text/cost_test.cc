// The bill of a message: what a piece and a message may take, and how a refusal names the limit.
#include "service/text/cost.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "service/text/look_ahead.h"
#include "service/text/text.h"

namespace sortition::service::cost_test {
namespace {

TEST(BillTest, PieceTakesNoMoreThanItsLimit) {
  Bill bill;
  bill.BeginRow();
  EXPECT_TRUE(bill.Take(kMaxPieceWork - 1));
  EXPECT_FALSE(bill.Take(2));
  EXPECT_FALSE(bill.Take(1)) << "a piece that asked for too much has nothing left";
  const Refusal refusal = bill.TooMuch("step.rows[3]");
  EXPECT_EQ(refusal.reason, Reason::kTooMany);
  EXPECT_EQ(refusal.field, "step.rows[3]");
  EXPECT_EQ(refusal.limit, absl::StrCat("max_piece_work ", kMaxPieceWork));
  bill.BeginRow();
  EXPECT_TRUE(bill.Take(kMaxPieceWork)) << "the next one has its own";
}

TEST(BillTest, PiecesTakeNoMoreThanTheMessage) {
  Bill bill;
  for (uint64_t spent = 0; spent < kMaxMessageWork; spent = bill.spent()) {
    bill.BeginRow();
    ASSERT_TRUE(bill.Take(std::min(kMaxPieceWork, kMaxMessageWork - spent)));
    EXPECT_EQ(bill.spent(), std::min(spent + kMaxPieceWork, kMaxMessageWork));
  }
  bill.BeginRow();
  EXPECT_TRUE(bill.Take(0));
  EXPECT_FALSE(bill.Take(1));
  const Refusal refusal = bill.TooMuch("position");
  EXPECT_EQ(refusal.reason, Reason::kOverloaded);
  EXPECT_EQ(refusal.limit, absl::StrCat("max_message_work ", kMaxMessageWork));
  EXPECT_GT(refusal.retry_after, absl::ZeroDuration());
}

TEST(BillTest, ShortMessageGetsShortAnswer) {
  Bill bill(10);
  EXPECT_TRUE(bill.TakeNames(100));
  EXPECT_FALSE(bill.TakeNames(61)) << "16 for each byte";
  EXPECT_TRUE(bill.TakeNames(60));
  EXPECT_FALSE(bill.TakeNames(1));
}

// Returns a spec of a text whose penalties count it.
std::shared_ptr<SequenceSpec> PenalisingSpec() {
  auto spec = std::make_shared<SequenceSpec>();
  spec->vocabulary = spec->live_vocabulary = 1000;
  spec->presence_penalty = 0.5f;
  return spec;
}

TEST(ForkCost, CountsArePricedOnlyIfTheyAreCopied) {
  constexpr uint32_t kDifferent = 800;
  std::vector<uint32_t> tokens(kDifferent);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto parent = Text::Build(PenalisingSpec(), tokens, 0, 1000);
  const auto sibling = PenalisingSpec();
  sibling->seed = 2;
  const uint64_t shared = kDifferent / TokenLog::kChunkTokens * price::kSharedChunk;
  EXPECT_EQ(parent->ForkCost(*sibling, kDifferent), shared);
  EXPECT_EQ(parent->ForkCost(*sibling, kDifferent - 3), shared + 3 * price::kFoundEdit) << "tokens that are cut off";
  const auto other = PenalisingSpec();
  other->presence_penalty = 0.25f;
  EXPECT_EQ(parent->ForkCost(*other, kDifferent), shared + kDifferent * price::kFoundEdit);
  EXPECT_EQ(parent->ForkCost(*sibling, 100), shared + 100 * price::kRewrittenToken) << "counted anew, which takes less";
}

// The list of a row that bans tokens is a copy, at its first position too.
TEST(LookAheadCost, FirstPositionsListIsPricedIfBansChangeIt) {
  std::vector<uint32_t> tokens(800);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto text = Text::Build(PenalisingSpec(), tokens, 0, 1000);
  for (const EditsUse use : {EditsUse::kTogether, EditsUse::kChanged}) {
    const uint64_t copied = use == EditsUse::kChanged ? tokens.size() : 0;
    Bill bill;
    const PositionViews views = LookAhead(text.get(), {}, use, &bill);
    ASSERT_EQ(views.size(), 1u);
    EXPECT_EQ(bill.spent(), copied * price::kCopiedEdit);
    EXPECT_EQ(BytesAhead(views, use), copied * sizeof(kernels::LogitEdit));
    text->EndLoan();
  }
  Bill spent;
  ASSERT_TRUE(spent.Take(kMaxPieceWork - price::kCopiedEdit));
  EXPECT_TRUE(LookAhead(text.get(), {}, EditsUse::kChanged, &spent).empty());
}

TEST(LookAheadCost, ListThatIsMadeForTheRowIsHeld) {
  const auto spec = PenalisingSpec();
  spec->history.stop_tokens = {10, 20, 30};
  spec->history.min_tokens = 1;
  std::vector<uint32_t> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto text = Text::Build(spec, tokens, 20, 1000);
  const PositionViews views = LookAhead(text.get(), {});
  EXPECT_EQ(views[0].edits.size(), 22u) << "20 penalties, of which one is of a stop token, and two bans";
  EXPECT_EQ(BytesAhead(views, EditsUse::kTogether), 22 * sizeof(kernels::LogitEdit));
  text->EndLoan();
}

// A list with bans of the history is one more. Positions that are seen in turn share a copy of the first list, and
// those that are seen together have one each.
TEST(LookAheadCost, ListsArePricedWhereTheyAreCopied) {
  std::vector<uint32_t> tokens(800);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto spend = [&](uint32_t ngram, const TokenTree& tree, EditsUse use) {
    const auto spec = PenalisingSpec();
    spec->history.no_repeat_ngram = ngram;
    Bill bill;
    LookAhead(Text::Build(spec, tokens, 0, 1000).get(), tree, use, &bill);
    return bill.spent();
  };
  EXPECT_EQ(spend(1, {}, EditsUse::kInTurn), tokens.size() * (2 * price::kFoundEdit + price::kCopiedEdit));
  const TokenTree drafts = TokenTree::Chain({5, 6});
  // The drafts' counts change: one at the first position after them, two at the next.
  constexpr uint64_t kChanged = 3 * price::kCopiedEdit;
  const uint64_t list = tokens.size() * price::kCopiedEdit;
  EXPECT_EQ(spend(0, drafts, EditsUse::kInTurn), 2 * price::kPosition + kChanged + list);
  EXPECT_EQ(spend(0, drafts, EditsUse::kTogether), 2 * price::kPosition + 2 * kChanged + 2 * list);
}

// A row that cannot pay for its n-grams is refused before they are looked for.
TEST(LookAheadCost, NgramsArePaidBeforeTheyAreSought) {
  std::vector<uint32_t> tokens(200'000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto spec = PenalisingSpec();
  spec->vocabulary = spec->live_vocabulary = static_cast<uint32_t>(tokens.size());
  spec->history.no_repeat_ngram = 1;
  const auto text = Text::Build(spec, tokens, 0, 1000);
  EXPECT_EQ(text->LooksForNgrams(), tokens.size());
  const auto time_of = [](auto act) {
    timespec before, after;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    act();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    return (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec;
  };
  const auto seek = time_of([&] { EXPECT_EQ(text->ChangesNow().size(), tokens.size()); });
  Bill bill;
  ASSERT_TRUE(bill.Take(kMaxPieceWork - tokens.size() * price::kFoundEdit));
  const auto refuse = time_of([&] { EXPECT_TRUE(LookAhead(text.get(), {}, EditsUse::kTogether, &bill).empty()); });
  EXPECT_LT(refuse, seek / 10);
}

// A string that is sought at the text's end is priced by its tokens, at each position.
TEST(LookAheadCost, StringsArePricedByTheirTokens) {
  const auto spend = [](size_t tokens, const TokenTree& tree) {
    const auto spec = PenalisingSpec();
    spec->history.bad_words.assign(1, TokenString(tokens, 1));
    spec->history.banned_phrases.assign(2, TokenString(tokens, 2));
    Bill bill;
    LookAhead(Text::Build(spec, std::vector<uint32_t>(2000, 0), 0, 1000).get(), tree, EditsUse::kTogether, &bill);
    return bill.spent();
  };
  constexpr uint64_t kLonger = 3 * 60 * price::kSoughtTokens;
  EXPECT_EQ(spend(8, {}), 3 * price::kSoughtString);
  EXPECT_EQ(spend(960, {}), spend(8, {}) + kLonger);
  EXPECT_EQ(spend(960, TokenTree::Chain({5})), spend(8, TokenTree::Chain({5})) + 2 * kLonger);
}

}  // namespace
}  // namespace sortition::service::cost_test
