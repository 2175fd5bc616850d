// Banned phrases in the client: bans by position, the history after a rewind, and the masks of the rows that follow.
#include "client/cpp/rewinds.h"

#include "client/cpp/history.h"
#include "client/cpp/row_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/state_harness.h"

namespace sortition::client::rewinds_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RewindsTest, BansAddUpAndEndWithTheirText) {
  Rewinds rewinds({2, {{9, 4}, {3, 7}, {9, 4}}});
  EXPECT_TRUE(rewinds.Ban(9, 2));
  EXPECT_FALSE(rewinds.Ban(9, 4));
  EXPECT_THAT(rewinds.At(9), ElementsAre(2, 4));
  EXPECT_THAT(rewinds.At(4), IsEmpty());
  EXPECT_FALSE(rewinds.At(3).empty());
  rewinds.Truncate(9);
  EXPECT_FALSE(rewinds.At(9).empty());
  rewinds.Truncate(8);
  EXPECT_TRUE(rewinds.At(9).empty());
  EXPECT_EQ(rewinds.all(), (Rewound{3, {{3, 7}}}));
}

TEST(RewindsTest, EachRewindAddsOneToTheSaltAndNoCutTakesOneAway) {
  Rewinds rewinds;
  const auto row_of = [](uint32_t salt) {
    Row row;
    row.draw_salt = salt;
    return row;
  };
  EXPECT_EQ(rewinds.Salt(row_of(7)), 7u);
  EXPECT_TRUE(rewinds.Ban(9, 4));
  EXPECT_EQ(rewinds.Salt(row_of(7)), 8u);
  EXPECT_FALSE(rewinds.Ban(9, 4));
  EXPECT_TRUE(rewinds.Ban(9, 5));
  rewinds.Truncate(0);
  EXPECT_EQ(rewinds.Salt(row_of(65534)), 0u);
  EXPECT_EQ(rewinds.Salt(row_of(65536)), 65536u) << "what is out of range is refused as the caller's";
  EXPECT_EQ(Rewinds({65536 + 3, {}}).Salt(row_of(1)), 4u);
  // A score takes tokens that were drawn before; the caller knows their salts.
  Row score = row_of(7);
  const uint32_t scored[] = {1};
  score.scored = scored;
  EXPECT_EQ(rewinds.Salt(score), 7u);
}

TEST(RewindsTest, HistoryIsCutOnce) {
  History history({1, 2, 3});
  history.Identify(7);
  history.Anchor();
  const std::vector<uint32_t> phrase = {5, 6};
  history.Drawn(phrase);
  history.Rewind(3, 5);
  EXPECT_THAT(history.tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(history.rewinds().At(3), ElementsAre(5));
  v1::StepRow row;
  history.DescribeStep(&row);
  EXPECT_EQ(row.truncate_to(), 3u);
  // It was drawn in spite of its ban.
  history.Drawn(phrase);
  history.Rewind(3, 5);
  EXPECT_THAT(history.tokens(), ElementsAre(1, 2, 3, 5, 6));
  EXPECT_EQ(history.rewinds().all().count, 1u);
  EXPECT_EQ(History::MakeFork(history, 4).rewinds().all(), (Rewound{1, {}}));
}

// The salt is a field of the step, so a server that does not know of the rewind draws the same token.
TEST(RewindsTest, EveryServerGetsTheSaltOfTheRewinds) {
  testing::StateHarness harness(testing::HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  client::SequenceOptions options;
  options.request_id = "text";
  options.prompt = {1, 2};
  options.parameters.set_repetition_penalty(1.5f);  // the fake hashes this option of those with a history
  const auto opened = harness.Open(options);
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  harness.Submit({opened.record});
  const v1::Step first = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(first.rows(0).draw_salt(), 0u);
  v1::StreamResponse answer = testing::StateHarness::Draw(first, 0, 5);
  v1::Rewind& rewind = *answer.mutable_results()->mutable_rows(0)->mutable_draw()->mutable_rewind();
  rewind.set_position(2);
  rewind.add_tokens(5);
  harness.Respond(harness.stream(0), answer);

  const auto results = harness.Submit({opened.record});
  const v1::StepRow sent = harness.TakeStep(harness.stream(0)).rows(0);
  EXPECT_EQ(sent.draw_salt(), 1u);
  // The answer is lost with the server. Another one gets the history, and the same step.
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  EXPECT_EQ(harness.stream(1).target, 1u);
  harness.RefuseOpen(harness.stream(1), harness.TakeOpen(harness.stream(1)),
                     testing::StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, v1::HISTORY_REQUIRED));
  const v1::OpenSequence again = harness.TakeOpen(harness.stream(1));
  EXPECT_THAT(again.history().tokens(), ElementsAre(1, 2));
  harness.AcceptOpen(harness.stream(1), again, true);
  const v1::Step step = harness.TakeStep(harness.stream(1));
  EXPECT_EQ(step.rows(0).draw_salt(), 1u);
  EXPECT_EQ(step.rows(0).step_id(), sent.step_id());
  EXPECT_EQ(step.rows(0).history_hash(), sent.history_hash());
  EXPECT_THAT(step.rows(0).mask().banned_tokens(), ElementsAre(5));
  harness.AnswerRow(harness.stream(1), step, 0, 6);
  ASSERT_EQ(results->times, 1);
  // It holds for all later steps, and for a process that continues the text.
  harness.Submit({opened.record});
  EXPECT_EQ(harness.TakeStep(harness.stream(1)).rows(0).draw_salt(), 1u);
  options.request_id = "continued";
  {
    absl::MutexLock lock(&opened.record->mutex);
    options.rewound = opened.record->history.rewinds().all();
  }
  const auto continued = harness.Open(options);
  harness.AcceptOpen(harness.stream(1), harness.TakeOpen(harness.stream(1)), true);
  harness.Submit({continued.record});
  EXPECT_EQ(harness.TakeStep(harness.stream(1)).rows(0).draw_salt(), 1u);
}

TEST(RewindsTest, BansReachTheFirstPosition) {
  const std::vector<uint32_t> drafts = {8, 9};
  Drafts proposed;
  proposed.tokens = drafts;
  Row row;
  row.drafts = &proposed;
  const std::vector<std::vector<uint32_t>> bans = BansWith(row, {4});
  ASSERT_EQ(bans.size(), 3u);
  row.banned_tokens = bans;
  v1::StepRow message;
  TensorRows taken;
  DescribeTask(row, &message);
  NameTensors(row, &taken, &message);
  ASSERT_EQ(message.verify_draft().masks_size(), 3);
  EXPECT_THAT(message.verify_draft().masks(0).banned_tokens(), ElementsAre(4));
  EXPECT_THAT(message.verify_draft().masks(1).banned_tokens(), IsEmpty());
  EXPECT_FALSE(message.has_mask());
}

// A row's own lists stay, and a score has no others.
TEST(RewindsTest, RowsKeepTheirOwnBans) {
  const std::vector<std::vector<uint32_t>> own = {{1, 2}};
  Row row;
  row.banned_tokens = own;
  EXPECT_THAT(BansWith(row, {4}), ElementsAre(ElementsAre(1, 2, 4)));
  EXPECT_THAT(BansWith(row, {}), IsEmpty());
  const std::vector<uint32_t> scored = {3};
  row.scored = scored;
  EXPECT_THAT(BansWith(row, {4}), IsEmpty());
  v1::StepRow message;
  TensorRows taken;
  NameTensors(row, &taken, &message);
  EXPECT_THAT(message.mask().banned_tokens(), ElementsAre(1, 2));
}

TEST(RewindsTest, WrongNumberOfListsIsRefused) {
  const float logits[1] = {};
  const std::vector<std::vector<uint32_t>> two = {{1}, {2}};
  Row row;
  row.logits = logits;
  row.banned_tokens = two;
  EXPECT_EQ(CheckRow(row).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(CheckRow(row).message()), ::testing::HasSubstr("banned_tokens"));
}

}  // namespace
}  // namespace sortition::client::rewinds_test
