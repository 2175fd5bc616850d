// The client's history: its description in a step after draws and rewrites.
#include "client/cpp/history.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/text/history/history_hash.h"

namespace sortition::client::history_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kDigest = 7;

uint64_t HashOf(const std::vector<uint32_t>& tokens, uint32_t prompt_length = 3) {
  uint64_t chain = service::kEmptyHash;
  for (uint32_t token : tokens) chain = service::ExtendTokenHash(chain, token);
  return service::HistoryHash(chain, prompt_length, kDigest);
}

v1::StepRow Describe(const History& history) {
  v1::StepRow row;
  history.DescribeStep(&row);
  return row;
}

History Anchored() {
  History history({1, 2, 3});
  history.Identify(kDigest);
  history.Anchor();
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

TEST(HistoryTest, NormalCourseNeedsNoRewrites) {
  History history = Anchored();
  for (uint32_t token : {10, 11, 12}) history.Drawn(token);
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 6);
  EXPECT_EQ(row.history_hash(), HashOf({1, 2, 3, 10, 11, 12}));
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
  EXPECT_EQ(row.history_hash(), HashOf({1, 2, 3, 20}));
}

TEST(HistoryTest, RewritesAddUpUntilStepIsAnswered) {
  History history = Anchored();
  for (uint32_t token : {10, 11, 12}) history.Drawn(token);
  ASSERT_TRUE(history.Truncate(5).ok());
  const uint32_t forced[] = {20, 21, 22};
  history.Append(forced);
  ASSERT_TRUE(history.Truncate(6).ok());  // cuts tokens that were only appended
  ASSERT_TRUE(history.Truncate(4).ok());  // cuts tokens that the service has
  history.Append({forced, 1});
  v1::StepRow row = Describe(history);
  EXPECT_EQ(row.position(), 5);
  EXPECT_EQ(row.truncate_to(), 4);
  EXPECT_THAT(row.append_tokens(), ElementsAre(20));
  EXPECT_EQ(row.history_hash(), HashOf({1, 2, 3, 10, 20}));

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

TEST(HistoryTest, ReplayMakesRewritesHistory) {
  History history = Anchored();
  history.Drawn(10);
  ASSERT_TRUE(history.ReplaceLast(20).ok());
  history.Anchor();
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.history_hash(), HashOf({1, 2, 3, 20}));
  EXPECT_FALSE(row.has_truncate_to());
  EXPECT_THAT(row.append_tokens(), IsEmpty());
  EXPECT_THAT(history.tokens(), ElementsAre(1, 2, 3, 20));
}

TEST(HistoryTest, CutIntoThePromptShortensThePrompt) {
  History history = Anchored();
  history.Drawn(10);
  ASSERT_TRUE(history.Truncate(2).ok());
  EXPECT_EQ(history.prompt_length(), 2);
  history.Append(std::vector<uint32_t>{3});
  const v1::StepRow row = Describe(history);
  EXPECT_EQ(row.truncate_to(), 2);
  EXPECT_THAT(row.append_tokens(), ElementsAre(3));
  // The third token is output, so the hash differs from the hash of the same tokens as a prompt.
  EXPECT_EQ(row.history_hash(), HashOf({1, 2, 3}, 2));
  EXPECT_NE(row.history_hash(), HashOf({1, 2, 3}, 3));
}

TEST(HistoryTest, CutsOfAnyDepthKeepTheHash) {
  History history = Anchored();
  std::vector<uint32_t> tokens = {1, 2, 3};
  for (uint32_t i = 0; i < 400; ++i) {
    history.Drawn(i * 31 % 50);
    tokens.push_back(i * 31 % 50);
  }
  for (const uint32_t position : {402u, 384u, 383u, 129u, 128u, 127u, 64u, 63u, 4u, 3u}) {
    ASSERT_TRUE(history.Truncate(position).ok());
    tokens.resize(position);
    EXPECT_EQ(history.hash(), HashOf(tokens)) << position;
    history.Append(std::vector<uint32_t>{9});
    tokens.push_back(9);
    EXPECT_EQ(history.hash(), HashOf(tokens)) << position;
  }
}

TEST(HistoryTest, DescribedOnceHistoryNeedsAreKnown) {
  History history({1, 2, 3});
  EXPECT_FALSE(history.CanDescribe());
  history.Append(std::vector<uint32_t>{4});
  history.Identify(kDigest);
  EXPECT_TRUE(history.CanDescribe());
  EXPECT_EQ(history.hash(), HashOf({1, 2, 3, 4}));
}

TEST(HistoryTest, ImpossibleRewriteChangesNothing) {
  History empty(std::vector<uint32_t>{});
  EXPECT_EQ(empty.ReplaceLast(1).code(), absl::StatusCode::kOutOfRange);
  History history = Anchored();
  EXPECT_EQ(history.Truncate(4).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(history.position(), 3);
  EXPECT_FALSE(Describe(history).has_truncate_to());
}

}  // namespace
}  // namespace sortition::client::history_test
