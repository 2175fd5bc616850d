// Changed rows for which only the first tokens are listed.
#include "kernels/cpu/list_first.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/target.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu::list_first_test {
namespace {

// A request of a row in which no two tokens are alike.
class ListFirstTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kVocabulary = 200 * law::kGroupSize - 5;

  ListFirstTest() : logits_(kVocabulary) {
    for (uint32_t id = 0; id < kVocabulary; ++id) logits_[id] = -float(id * 7919 % kVocabulary) / 256;
    request_.logits = logits_.data();
    request_.live_vocabulary = kVocabulary;
    request_.parameters = &parameters_;
  }

  void SetOptions(const law::SamplingParameters& options) { law::Compile(options, &parameters_); }

  std::vector<uint32_t> FirstTokens(size_t count) const {
    std::vector<uint32_t> ids(kVocabulary);
    for (uint32_t id = 0; id < kVocabulary; ++id) ids[id] = id;
    std::ranges::sort(ids, std::greater<>(), [&](uint32_t id) { return logits_[id]; });
    ids.resize(count);
    return ids;
  }

  // Edits all these tokens alike.
  void Edit(std::vector<uint32_t> tokens, LogitEdit edit) {
    for (const uint32_t token : tokens) {
      edit.token = token;
      edits_.push_back(edit);
    }
    std::ranges::sort(edits_, {}, &LogitEdit::token);
    request_.edits = edits_;
  }

  void Allow(std::vector<uint32_t> tokens) {
    allowed_ = std::move(tokens);
    std::ranges::sort(allowed_);
    request_.has_allowed_tokens = true;
    request_.allowed_tokens = allowed_;
  }

  Candidate Changed(uint32_t id) const {
    return Candidate::Of(
        law::Key(law::ChangedBits(request_, {id, law::Canonical(std::bit_cast<uint32_t>(logits_[id]))})), id);
  }

  // Calls check(was listed, row) for each target.
  template <typename Check>
  void OnAllTargets(bool may_raise, Check check) {
    for (const Target* target : RunnableTargets()) {
      SCOPED_TRACE(target->name);
      Scratch scratch;
      RowOutput answer;
      RowView raw = LayRow(request_, RowCopy(), &scratch);
      ASSERT_TRUE(ReadRow(target->kernels, request_, &scratch, &raw, &answer));
      RowView row = raw;
      const bool listed = ListFirst(target->kernels, request_, raw, may_raise, &scratch, &row);
      check(listed, row);
    }
  }

  // Expects that the row is listed, and that the list has exactly the tokens with a key at its floor or above, `least`
  // or more. Returns the number of tokens that were listed on the last target.
  size_t ExpectListed(size_t least, bool may_raise = false) {
    size_t number = 0;
    OnAllTargets(may_raise, [&](bool listed, const RowView& row) {
      ASSERT_TRUE(listed);
      EXPECT_TRUE(row.IsOnlyListed());
      std::vector<Candidate> expected;
      uint32_t max_key = 0;
      for (uint32_t id = 0; id < kVocabulary; ++id) {
        max_key = std::max(max_key, Changed(id).key());
        if (Changed(id).key() >= row.listed_floor) expected.push_back(Changed(id));
      }
      std::vector<Candidate> found(row.listed.begin(), row.listed.end());
      std::ranges::sort(expected);
      std::ranges::sort(found);
      EXPECT_EQ(found, expected);
      EXPECT_EQ(row.max_key, max_key);
      EXPECT_GE(found.size(), least);
      number = found.size();
    });
    return number;
  }
  void ExpectNotListed(bool may_raise = false) {
    OnAllTargets(may_raise, [](bool listed, const RowView& row) {
      EXPECT_FALSE(listed);
      EXPECT_FALSE(row.IsOnlyListed());
    });
  }

  std::vector<float> logits_;
  RowParameters parameters_;
  std::vector<LogitEdit> edits_;
  std::vector<uint32_t> allowed_;
  RowRequest request_;
};

TEST_F(ListFirstTest, EditsOfOtherTokensChangeNothing) {
  SetOptions({.top_k = 20});
  const std::vector<uint32_t> last = FirstTokens(kVocabulary);
  Edit({last.end() - 100, last.end()}, {.penalty = std::bit_cast<uint32_t>(-1.0f)});
  const size_t number = ExpectListed(20);
  EXPECT_LT(number, 200u);
}

TEST_F(ListFirstTest, FirstTokensThatAreMovedDownAreStillFound) {
  for (const float penalty : {-0.01f, -0.5f, -20.0f}) {
    for (const uint32_t top_k : {1u, 20u}) {
      SetOptions({.top_k = top_k});
      edits_.clear();
      Edit(FirstTokens(300), {.penalty = std::bit_cast<uint32_t>(penalty)});
      ExpectListed(top_k);
    }
  }
}

TEST_F(ListFirstTest, MinPEndsTheListBelowTheFirstTokenThatIsLeft) {
  SetOptions({.min_p = 0.5f});
  Edit(FirstTokens(30), {.flags = LogitEdit::kBanned});
  EXPECT_LT(ExpectListed(1), 1000u);
}

TEST_F(ListFirstTest, GreedyNeedsTheFirstTokenThatIsLeft) {
  SetOptions({.temperature = 0});
  Edit(FirstTokens(100), {.penalty = std::bit_cast<uint32_t>(-3.0f)});
  ExpectListed(1);
}

TEST_F(ListFirstTest, TokensThatAreMovedUpAreFound) {
  SetOptions({.top_k = 20});
  const std::vector<uint32_t> last = FirstTokens(kVocabulary);
  Edit({last.end() - 5, last.end()}, {.bias = std::bit_cast<uint32_t>(100.0f)});
  ExpectListed(20, /*may_raise=*/true);
}

TEST_F(ListFirstTest, RepetitionPenaltiesBelowOneMoveTokensUp) {
  SetOptions({.top_k = 20, .repetition_penalty = 0.01f});
  const std::vector<uint32_t> last = FirstTokens(kVocabulary);
  Edit({last.end() - 5, last.end()}, {.flags = LogitEdit::kRepeated});
  ExpectListed(20);
}

TEST_F(ListFirstTest, FewTokensThatAMaskLeavesAreAllListed) {
  SetOptions({.top_k = 20});
  Allow({3, 64, 6400, kVocabulary - 1});
  Edit({64, 65}, {.penalty = std::bit_cast<uint32_t>(-1.0f)});
  EXPECT_EQ(ExpectListed(4), 4u);
}

TEST_F(ListFirstTest, MasksThatHideTheFirstTokens) {
  SetOptions({.top_k = 20, .min_p = 0.1f});
  const std::vector<uint32_t> all = FirstTokens(kVocabulary);
  Allow({all.begin() + 500, all.end()});
  ExpectListed(1);
}

TEST_F(ListFirstTest, RowsWithoutALiveTokenAreListedEmpty) {
  SetOptions({.top_k = 20});
  Allow({3, 64});
  Edit({3, 64}, {.flags = LogitEdit::kBanned});
  EXPECT_EQ(ExpectListed(0), 0u);
}

TEST_F(ListFirstTest, OtherRequestsAreNotListed) {
  Edit({1}, {.penalty = std::bit_cast<uint32_t>(-1.0f)});
  for (const law::SamplingParameters& options : {law::SamplingParameters{},
                                                 {.top_p = 0.5f},
                                                 {.top_p = 0.5f, .min_p = 0.1f},
                                                 {.top_k = 2000},
                                                 {.typical_p = 0.5f}}) {
    SetOptions(options);
    ExpectNotListed();
  }
  SetOptions({.top_k = 20});
  parameters_.tempered_logprob = true;
  ExpectNotListed();
}

TEST_F(ListFirstTest, RowsThatAnEditFailsAreNotListed) {
  SetOptions({.top_k = 20});
  Edit({FirstTokens(kVocabulary).back()}, {.bias = std::bit_cast<uint32_t>(70000.0f)});
  ExpectNotListed(/*may_raise=*/true);
}

TEST(LookAtEdits, SeesEveryEdit) {
  for (const Target* target : RunnableTargets()) {
    SCOPED_TRACE(target->name);
    for (size_t count = 0; count < 20; ++count) {
      std::vector<LogitEdit> edits(count);
      for (size_t i = 0; i < count; ++i)
        edits[i] = {.token = uint32_t(3 * i + 3),
                    .bias = std::bit_cast<uint32_t>(-1.0f),
                    .penalty = std::bit_cast<uint32_t>(-1.0f)};
      EXPECT_TRUE(target->kernels.LookAtEdits(edits).ascend);
      EXPECT_FALSE(target->kernels.LookAtEdits(edits).may_raise);
      for (size_t i = 0; i < count; ++i) {
        std::vector<LogitEdit> other = edits;
        other[i].bias = std::bit_cast<uint32_t>(0x1p-20f);
        EXPECT_TRUE(target->kernels.LookAtEdits(other).may_raise);
        other = edits;
        other[i].penalty = std::bit_cast<uint32_t>(0x1p-20f);
        EXPECT_TRUE(target->kernels.LookAtEdits(other).may_raise);
        other = edits;
        if (i == 0) continue;
        other[i].token = other[i - 1].token;
        EXPECT_FALSE(target->kernels.LookAtEdits(other).ascend);
        other[i].token = other[i - 1].token - 1;
        EXPECT_FALSE(target->kernels.LookAtEdits(other).ascend);
      }
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::list_first_test
