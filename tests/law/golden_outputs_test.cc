// The code computes the law's examples as they stand in the file.
#include "kernels/law/golden/golden_outputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "kernels/features.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"

namespace sortition::law::golden_outputs_test {
namespace {

using kernels::DType;
using kernels::RowFault;

TEST(GoldenOutputs, FileEqualsCode) {
  std::ifstream file(SORTITION_SOURCE_DIR "/kernels/law/vectors/golden_outputs.json");
  ASSERT_TRUE(file) << "kernels/law/vectors/golden_outputs.json is missing";
  std::ostringstream text;
  text << file.rdbuf();
  // Lines rather than the whole, so that a failure shows the case.
  std::istringstream from_file(text.str());
  std::istringstream from_code(GoldenOutputsJson());
  std::string in_file;
  std::string in_code;
  for (int line = 1; std::getline(from_code, in_code); ++line) {
    ASSERT_TRUE(std::getline(from_file, in_file)) << "the file ends before line " << line;
    ASSERT_EQ(in_file, in_code) << "line " << line;
  }
  EXPECT_FALSE(std::getline(from_file, in_file)) << "the file goes on after what the code writes";
}

// A device serves if it answers these rows. A case that they do not reach, it could do wrong and serve.
class GoldenRowsMeet : public ::testing::Test {
 protected:
  struct Case {
    GoldenRow row;
    kernels::RowOutput answer;
  };
  static const std::vector<Case>& Cases() {
    static const std::vector<Case>& cases = *new std::vector<Case>([] {
      std::vector<Case> made;
      for (GoldenRow& row : GoldenRows()) {
        const std::vector<std::byte> tensor = MakeTensor(row);
        const kernels::RowOutput answer = SampleRowReference(MakeRequest(row, tensor));
        made.push_back({std::move(row), answer});
      }
      return made;
    }());
    return cases;
  }
  template <typename Predicate>
  static bool Any(Predicate is) {
    return std::ranges::any_of(Cases(), [&](const Case& c) { return is(c.row, c.answer); });
  }
};

TEST_F(GoldenRowsMeet, EveryError) {
  for (const RowFault error : {RowFault::kNone, RowFault::kNaN, RowFault::kLogitTooLarge, RowFault::kNoLiveToken,
                               RowFault::kDraftNoProbability, RowFault::kDraftSum, RowFault::kDraftImpossible}) {
    EXPECT_TRUE(Any([&](const auto&, const auto& answer) { return answer.error == error; })) << int(error);
  }
}

// With a chain and without, of few tokens and of many. Some features are younger than the golden rows.
TEST_F(GoldenRowsMeet, EveryFeature) {
  kernels::Features of_chains = 0;
  kernels::Features of_others = 0;
  kernels::Features of_large_rows = 0;
  for (const Case& known : Cases()) {
    const std::vector<std::byte> tensor = MakeTensor(known.row);
    const kernels::Features features = kernels::FeaturesOf(MakeRequest(known.row, tensor));
    (known.row.compiled.chain.empty() ? of_others : of_chains) |= features;
    if (known.row.vocabulary >= 32000) of_large_rows |= features;
  }
  constexpr kernels::Features kYounger = kernels::kFeatureTempered | kernels::kFeatureMinKeep | kernels::kFeatureBlock |
                                         kernels::kFeatureRounds | kernels::FeatureOf(kernels::StageKind::kMinK);
  constexpr kernels::Features kKnown = kernels::kAllFeatures & ~kYounger;
  EXPECT_EQ(of_chains, kKnown);
  EXPECT_EQ(of_others, kKnown & ~kernels::kFeatureEveryStage);
  EXPECT_EQ(of_large_rows, kKnown);
}

TEST_F(GoldenRowsMeet, EveryDraftAcceptedAndRejected) {
  using Form = kernels::DraftDistribution::Form;
  for (const Form form : {Form::kCertain, Form::kDense, Form::kSparse}) {
    for (const bool accepted : {true, false}) {
      EXPECT_TRUE(Any([&](const GoldenRow& row, const kernels::RowOutput& answer) {
        return row.task == kernels::RowTask::kVerify && row.draft.form == form && answer.error == RowFault::kNone &&
               answer.accepted == accepted;
      })) << int(form)
          << accepted;
    }
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_TRUE(Any([&](const GoldenRow& row, const kernels::RowOutput& answer) {
      return row.draft.form == Form::kDense && row.draft.dtype == dtype && answer.error == RowFault::kNone;
    })) << int(dtype);
  }
}

// Kernels leave out unrequested logprobs, so each of these takes a different path.
TEST_F(GoldenRowsMeet, EveryLogprobAloneAndNone) {
  for (const bool raw : {true, false}) {
    for (const bool processed : {true, false}) {
      EXPECT_TRUE(Any([&](const GoldenRow& row, const kernels::RowOutput&) {
        return row.compiled.raw_logprob == raw && row.compiled.processed_logprob == processed &&
               row.task == kernels::RowTask::kDraw && row.vocabulary > 1000;
      })) << raw
          << processed;
    }
  }
}

}  // namespace
}  // namespace sortition::law::golden_outputs_test
