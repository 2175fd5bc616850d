// The law's examples, as they stand in the file, are what the code computes.
#include "kernels/law/known_answers.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/law/known_rows.h"
#include "kernels/law/reference.h"

namespace sortition::law {
namespace {

TEST(KnownAnswers, FileEqualsCode) {
  std::ifstream file(SORTITION_SOURCE_DIR "/kernels/law/known_answers.json");
  ASSERT_TRUE(file) << "kernels/law/known_answers.json is missing";
  std::ostringstream text;
  text << file.rdbuf();
  // Lines rather than the whole, so that a failure shows the case.
  std::istringstream from_file(text.str());
  std::istringstream from_code(KnownAnswersJson());
  std::string in_file;
  std::string in_code;
  for (int line = 1; std::getline(from_code, in_code); ++line) {
    ASSERT_TRUE(std::getline(from_file, in_file)) << "the file ends before line " << line;
    ASSERT_EQ(in_file, in_code) << "line " << line;
  }
  EXPECT_FALSE(std::getline(from_file, in_file)) << "the file goes on after what the code writes";
}

TEST(KnownAnswers, RowsMeetEveryError) {
  std::vector<kernels::RowError> errors;
  for (const KnownRow& row : KnownRows()) {
    const std::vector<std::byte> tensor = TensorOf(row);
    errors.push_back(SampleRowReference(RequestOf(row, tensor)).error);
  }
  for (const kernels::RowError error : {kernels::RowError::kNone, kernels::RowError::kNaN,
                                        kernels::RowError::kLogitTooLarge, kernels::RowError::kNoLiveToken}) {
    EXPECT_NE(std::find(errors.begin(), errors.end(), error), errors.end()) << int(error);
  }
}

}  // namespace
}  // namespace sortition::law
