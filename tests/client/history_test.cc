// The client's history: what a step says of it after draws and edits.
#include "client/cpp/history.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/sequence/history_hash.h"

namespace sortition::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

uint64_t Chain(uint64_t hash, const std::vector<uint32_t>& tokens) {
  for (uint32_t token : tokens) hash = service::ExtendHistoryHash(hash, token);
  return hash;
}

v1::StepRow Describe(const History& history) {
  v1::StepRow row;
  history.DescribeStep(&row);
  return row;
}

History Anchored() {
  History history({1, 2, 3});
  history.Anchor(Chain(7, {1, 2, 3}));
  return history;
}

TEST(HistoryTest, NothingKeptMeansPositionsOnly) {
  History history({1, 2, 3});
  history.KeepNothing();
  history.Drawn(9);
  const uint32_t forced[] = {4, 5};
  history.Append(forced);
  ASSERT_TRUE(history.Truncate(5).ok());
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 5);
  EXPECT_FALSE(row.has_history_hash());
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), IsEmpty());
  EXPECT_THAT(history.tokens(), IsEmpty());
}

TEST(HistoryTest, NormalCourseNeedsNoEdits) {
  History history = Anchored();
  for (uint32_t token : {10, 11, 12}) history.Drawn(token);
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 6);
  EXPECT_EQ(row.history_hash(), Chain(7, {1, 2, 3, 10, 11, 12}));
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), IsEmpty());
}

TEST(HistoryTest, ReplacedTokenIsCutAndAppended) {
  History history = Anchored();
  history.Drawn(10);
  ASSERT_TRUE(history.ReplaceLast(20).ok());
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 4);
  EXPECT_EQ(row.truncate_to(), 3);
  EXPECT_THAT(row.append_tokens(), ElementsAre(20));
  EXPECT_EQ(row.history_hash(), Chain(7, {1, 2, 3, 20}));
}

TEST(HistoryTest, EditsAddUpUntilAStepIsAnswered) {
  History history = Anchored();
  for (uint32_t token : {10, 11, 12}) history.Drawn(token);
  ASSERT_TRUE(history.Truncate(5).ok());
  const uint32_t forced[] = {20, 21, 22};
  history.Append(forced);
  ASSERT_TRUE(history.Truncate(6).ok());  // cuts what was only appended
  ASSERT_TRUE(history.Truncate(4).ok());  // cuts deeper into what the service has
  history.Append({forced, 1});
  v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 5);
  EXPECT_EQ(row.truncate_to(), 4);
  EXPECT_THAT(row.append_tokens(), ElementsAre(20));
  EXPECT_EQ(row.history_hash(), Chain(7, {1, 2, 3, 10, 20}));

  history.Drawn(13);
  row = Describe(history);
  EXPECT_EQ(row.position(), 6);
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), IsEmpty());
}

TEST(HistoryTest, AppendedTokensAloneNeedNoCut) {
  History history = Anchored();
  const uint32_t forced[] = {20, 21};
  history.Append(forced);
  const v1::StepRow row = Describe(history);
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), ElementsAre(20, 21));
}

TEST(HistoryTest, ReplayMakesTheEditsPartOfTheHistory) {
  History history = Anchored();
  history.Drawn(10);
  ASSERT_TRUE(history.ReplaceLast(20).ok());
  history.Anchor(99);
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.history_hash(), 99);
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), IsEmpty());
  EXPECT_THAT(history.tokens(), ElementsAre(1, 2, 3, 20));
}

TEST(HistoryTest, CutIntoThePromptNeedsAReplayAndShortensThePrompt) {
  History history = Anchored();
  history.Drawn(10);
  ASSERT_TRUE(history.Truncate(2).ok());
  EXPECT_FALSE(history.CanDescribe());
  EXPECT_EQ(history.prompt_length(), 2);
  history.Anchor(5);
  EXPECT_TRUE(history.CanDescribe());
}

TEST(HistoryTest, CutBelowTheLastReplayNeedsAnother) {
  History history = Anchored();
  for (uint32_t token : {10, 11, 12}) history.Drawn(token);
  history.Anchor(50);
  history.Drawn(13);
  ASSERT_TRUE(history.Truncate(6).ok());
  EXPECT_TRUE(history.CanDescribe());
  ASSERT_TRUE(history.Truncate(5).ok());
  EXPECT_FALSE(history.CanDescribe());
  EXPECT_EQ(history.prompt_length(), 3);
}

TEST(HistoryTest, ImpossibleEditsAreRefusedAndChangeNothing) {
  History empty(std::vector<uint32_t>{});
  EXPECT_EQ(empty.ReplaceLast(1).code(), absl::StatusCode::kOutOfRange);
  History history = Anchored();
  EXPECT_EQ(history.Truncate(4).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(history.position(), 3);
  EXPECT_FALSE(Describe(history).has_truncate_to());
}

}  // namespace
}  // namespace sortition::client
