// Places in the race by the list of kept tokens are the law's, and no other output changes.
#include "kernels/law/race_by_list.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"

namespace sortition::law::race_by_list_test {
namespace {

struct Row {
  kernels::RowRequest request;
};

TEST(RaceByList, EqualsReference) {
  std::vector<std::unique_ptr<kernels::RandomRow>> made;
  std::vector<Row> rows;
  uint64_t wanted = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const auto options = seed % 2 == 0 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
    made.push_back(std::make_unique<kernels::RandomRow>(seed, 1 + uint32_t(seed * 7919 % 300), options));
    made.back()->AskForMore();
    made.back()->AskForRecord();
    rows.emplace_back().request = made.back()->request();
    wanted += rows.back().request.wants_race_place;
  }
  EXPECT_GT(wanted, 200u);
  const RaceByList<Row> by_list(rows);
  ASSERT_EQ(by_list.rows().size(), rows.size());
  std::vector<kernels::RowOutput> outputs;
  for (const Row& row : by_list.rows()) {
    EXPECT_FALSE(row.request.wants_race_place);
    outputs.push_back(SampleRowReference(row.request));
  }
  by_list.Finish(outputs);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(outputs[i], SampleRowReference(rows[i].request)) << made[i]->description();
  }
}

TEST(RaceByList, RowsWithoutPlacesAreNotCopied) {
  const kernels::RandomRow row(1, 100);
  const std::vector<Row> rows(3, Row{row.request()});
  EXPECT_EQ(RaceByList<Row>(rows).rows().data(), rows.data());
}

}  // namespace
}  // namespace sortition::law::race_by_list_test
