// Scores that request places in the race, and other ids at each position.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/judged_rows.h"

namespace sortition::service::session_race_test {
namespace {

using testing::StepBuilder;

class SessionRace : public JudgedRows {
 protected:
  // Draws at position 0, once with every salt below `salts`, and scores `token` there. Returns whether it was drawn and
  // its place.
  struct Scored {
    bool was_drawn;
    v1::RacePlace place;
  };
  Scored ScoreOf(uint32_t token, uint32_t salt) {
    StepBuilder draw(++batch_, kModelVocabulary);
    draw.AddRow("a", batch_, 3, Logits(0)).set_draw_salt(salt);
    const uint32_t drawn = RunOne(draw).draw().token();
    StepBuilder step(++batch_, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", batch_, 3, Logits(0));
    row.set_draw_salt(salt);
    row.mutable_score()->add_tokens(token);
    row.mutable_score()->set_race(true);
    const v1::RowResult result = RunOne(step);
    EXPECT_TRUE(result.score().positions(0).has_race()) << result.ShortDebugString();
    EXPECT_TRUE(result.score().positions(0).kept_tokens().empty());
    return {drawn == token, result.score().positions(0).race()};
  }
  v1::Error ErrorOf(const StepBuilder& step) { return RunOne(step).error(); }

  uint64_t batch_ = 0;
};

TEST_F(SessionRace, FirstIsTheTokenThatIsDrawn) {
  open_.mutable_parameters()->set_top_k(5);
  worker_.MustOpen(open_);
  int drawn = 0, others = 0, filtered = 0;
  for (uint32_t token = 0; token < kModelVocabulary; ++token) {
    for (uint32_t salt = 0; salt < 8; ++salt) {
      const auto [was_drawn, place] = ScoreOf(token, salt);
      EXPECT_EQ(place.rank() == 1, was_drawn);
      EXPECT_EQ(place.margin() == 0, was_drawn);
      EXPECT_EQ(std::isinf(place.margin()), place.rank() == 0);
      EXPECT_LE(place.rank(), 5u);
      drawn += was_drawn;
      others += place.rank() > 1;
      filtered += place.rank() == 0;
    }
  }
  EXPECT_EQ(drawn, 8);
  EXPECT_EQ(others, 4 * 8);
  EXPECT_EQ(filtered, (static_cast<int>(kModelVocabulary) - 5) * 8);
}

TEST_F(SessionRace, GreedyRowHasOneRacer) {
  open_.mutable_parameters()->set_temperature(0);
  worker_.MustOpen(open_);
  int first = 0;
  for (uint32_t token = 0; token < kModelVocabulary; ++token) first += ScoreOf(token, 0).place.rank() == 1;
  EXPECT_EQ(first, 1);
}

TEST_F(SessionRace, AdaptivePIsRefused) {
  open_.mutable_parameters()->mutable_adaptive_p()->set_target(0.3f);
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::Score& score = *step.AddRow("a", 1, 0, Logits(0)).mutable_score();
  score.add_tokens(1);
  score.set_race(true);
  EXPECT_EQ(ErrorOf(step).reason(), v1::CONTRADICTION);
  EXPECT_EQ(ErrorOf(step).field(), "step.rows[0].score.race");
}

TEST_F(SessionRace, IdsDifferByPosition) {
  open_.mutable_parameters()->mutable_raw_logprobs();
  open_.mutable_parameters()->add_logprob_token_ids(3);
  worker_.MustOpen(open_);
  const std::vector<std::vector<uint32_t>> ids = {{7, 1, 40}, {}, {2}};
  StepBuilder step(1, kModelVocabulary);
  v1::Score& score = *step.AddRow("a", 1, 0, Logits(0)).mutable_score();
  for (uint64_t i = 0; i < ids.size(); ++i) {
    if (i > 0) step.AddTensorRow(Logits(i));
    score.add_tokens(5);
    score.add_requested()->mutable_tokens()->Assign(ids[i].begin(), ids[i].end());
  }
  const v1::RowResult result = RunOne(step);
  ASSERT_TRUE(result.has_score()) << result.ShortDebugString();
  for (size_t i = 0; i < ids.size(); ++i) {
    const v1::Position& position = result.score().positions(static_cast<int>(i));
    ASSERT_EQ(position.raw().requested_logprobs_size(), static_cast<int>(ids[i].size()));
    ASSERT_EQ(position.processed().requested_ranks_size(), static_cast<int>(ids[i].size()));
    for (size_t j = 0; j < ids[i].size(); ++j) {
      // Scored by itself the token has the same logprob.
      StepBuilder alone(100 + i * 10 + j, kModelVocabulary);
      alone.AddRow("a", 1, 0, Logits(i)).mutable_score()->add_tokens(ids[i][j]);
      const v1::Position expected = RunOne(alone).score().positions(0);
      EXPECT_EQ(position.raw().requested_logprobs(static_cast<int>(j)), expected.raw().logprob());
      EXPECT_EQ(position.raw().requested_ranks(static_cast<int>(j)), expected.raw().rank());
    }
  }
}

TEST_F(SessionRace, WrongIdsAreNamed) {
  open_.mutable_parameters()->mutable_raw_logprobs();
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::Score& score = *step.AddRow("a", 1, 0, Logits(0)).mutable_score();
  score.add_tokens(1);
  step.AddTensorRow(Logits(1));
  score.add_tokens(2);
  score.add_requested()->add_tokens(3);
  EXPECT_EQ(ErrorOf(step).reason(), v1::OUT_OF_RANGE);
  EXPECT_EQ(ErrorOf(step).field(), "step.rows[0].score.requested");
  score.add_requested()->add_tokens(kModelVocabulary);
  EXPECT_EQ(ErrorOf(step).field(), "step.rows[0].score.requested[1].tokens[0]");
  score.mutable_requested(1)->set_tokens(0, 4);
  score.mutable_requested(1)->add_tokens(4);
  EXPECT_EQ(ErrorOf(step).reason(), v1::CONTRADICTION);
  EXPECT_EQ(ErrorOf(step).field(), "step.rows[0].score.requested[1].tokens");
}

}  // namespace
}  // namespace sortition::service::session_race_test
