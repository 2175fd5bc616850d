// Banned phrases in the client: bans by position, the history after a rewind, and the masks of the rows that follow.
#include "client/cpp/rewinds.h"

#include "client/cpp/history.h"
#include "client/cpp/row_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sortition::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RewindsTest, BansAddUpAndEndWithTheirText) {
  Rewinds rewinds({{9, 4}, {3, 7}, {9, 4}});
  EXPECT_TRUE(rewinds.Ban(9, 2));
  EXPECT_FALSE(rewinds.Ban(9, 4));
  EXPECT_THAT(rewinds.At(9), ElementsAre(2, 4));
  EXPECT_THAT(rewinds.At(4), IsEmpty());
  EXPECT_TRUE(rewinds.IsAt(3));
  rewinds.Truncate(9);
  EXPECT_TRUE(rewinds.IsAt(9));
  rewinds.Truncate(8);
  EXPECT_FALSE(rewinds.IsAt(9));
  EXPECT_EQ(rewinds.all(), (std::vector<BannedAt>{{3, 7}}));
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
  EXPECT_EQ(History::ForkOf(history, 4).rewinds().all(), std::vector<BannedAt>());
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
}  // namespace sortition::client
