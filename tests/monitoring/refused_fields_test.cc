// Fields of refusals as labels: a closed list, also for paths that a client has made up.
#include "service/wire/refused_fields.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "service/wire/parameter_table.h"

namespace sortition::service::refused_fields_test {
namespace {

std::string LabelOf(std::string_view path) { return RefusedFields()[FindRefusedField(path)]; }

TEST(RefusedFieldsTest, EveryParameterIsALabelOnce) {
  const std::set<std::string> labels(RefusedFields().begin(), RefusedFields().end());
  EXPECT_EQ(labels.size(), RefusedFields().size());
  EXPECT_LE(labels.size(), 150u);
  for (const ParameterDescription& parameter : Parameters()) EXPECT_TRUE(labels.contains(std::string(parameter.name)));
}

TEST(RefusedFieldsTest, LastKnownNameOfThePathIsIt) {
  EXPECT_EQ(LabelOf("step.rows[3].parameters.dry.multiplier"), "dry");
  EXPECT_EQ(LabelOf("open.parameters.temperature"), "temperature");
  EXPECT_EQ(LabelOf("rows[0].parameters.presence_penalty"), "presence_penalty");
  EXPECT_EQ(LabelOf("step.rows[1].position"), "position");
  EXPECT_EQ(LabelOf("raw_logprobs.top"), "raw_logprobs");
  EXPECT_EQ(LabelOf("temperature"), "temperature");
}

TEST(RefusedFieldsTest, WithoutAKnownNameItIsOtherOrNone) {
  EXPECT_EQ(LabelOf(""), "none");
  EXPECT_EQ(LabelOf("watcher"), "other");
  EXPECT_EQ(LabelOf("step"), "other");
}

TEST(RefusedFieldsTest, HostilePathsAddNoLabel) {
  const size_t before = RefusedFields().size();
  const std::string hostile[] = {"\"} 1\nforged_total{x=\"",
                                 std::string(1 << 20, 'a'),
                                 std::string(1 << 20, '.'),
                                 std::string("temp\0erature", 12),
                                 "Temperature",
                                 "temperature2",
                                 "\xff\xfe",
                                 "none",
                                 "other",
                                 "<script>",
                                 "logit_bias_",
                                 "[[[[",
                                 absl::StrCat(std::string(100'000, '['), "seed")};
  for (const std::string& path : hostile) EXPECT_EQ(LabelOf(path), "other") << path.substr(0, 20);
  EXPECT_EQ(RefusedFields().size(), before);
}

}  // namespace
}  // namespace sortition::service::refused_fields_test
