// Unknown fields and enum values are found at every depth of every message type of the contract.
#include "service/wire/strictness.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "service/wire/stream_request.h"
#include "service/wire/wire_scan.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/support/messages.h"

namespace sortition::service::strictness_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kUnknownNumber = 1234;

void AddUnknown(Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(kUnknownNumber, 1);
}

void ExpectUnknown(const Message& message, Reason reason, const std::string& field) {
  const std::optional<Refusal> refusal = FindUnknown(message, "");
  EXPECT_TRUE(ScanStream(message.SerializeAsString()).may_have_unknown) << field;
  ASSERT_TRUE(refusal.has_value()) << field;
  EXPECT_EQ(refusal->reason, reason) << field;
  EXPECT_EQ(refusal->field, field);
}

v1::StreamRequest StepWithAMask() {
  testing::StepBuilder builder(1, 4);
  builder.AddRow("a", 1, 0, "");
  builder.AddRow("b", 1, 0, "").mutable_mask()->mutable_allowed_tokens()->add_tokens(1);
  return builder.Build();
}

TEST(Strictness, KnownMessagesPass) {
  EXPECT_FALSE(FindUnknown(v1::StreamRequest(), "").has_value());
  EXPECT_FALSE(FindUnknown(StepWithAMask(), "").has_value());
  v1::StreamRequest open;
  open.mutable_open()->mutable_parameters()->set_nan_policy(v1::NAN_POLICY_MASK);
  EXPECT_FALSE(FindUnknown(open, "").has_value());
}

TEST(Strictness, UnknownFieldAtTheTop) {
  v1::StreamRequest message = StepWithAMask();
  AddUnknown(&message);
  ExpectUnknown(message, Reason::kUnknownField, "#1234");
}

TEST(Strictness, UnknownFieldNested) {
  v1::StreamRequest message = StepWithAMask();
  AddUnknown(message.mutable_step()->mutable_logits());
  ExpectUnknown(message, Reason::kUnknownField, "step.logits.#1234");
}

TEST(Strictness, UnknownFieldInARepeatedMessage) {
  v1::StreamRequest message = StepWithAMask();
  AddUnknown(message.mutable_step()->mutable_rows(1)->mutable_mask()->mutable_allowed_tokens());
  ExpectUnknown(message, Reason::kUnknownField, "step.rows[1].mask.allowed_tokens.#1234");
}

TEST(Strictness, UnknownFieldComesFromTheWire) {
  v1::StreamRequest message;
  // hello { field 4, varint 7 }
  ASSERT_TRUE(message.ParseFromString(std::string("\x0a\x02\x20\x07", 4)));
  ExpectUnknown(message, Reason::kUnknownField, "hello.#4");
}

TEST(Strictness, FieldInAnotherWireFormIsNamed) {
  v1::StreamRequest message;
  // hello.worker_session as a varint
  ASSERT_TRUE(message.ParseFromString(std::string("\x0a\x02\x08\x07", 4)));
  ExpectUnknown(message, Reason::kMalformedMessage, "hello.worker_session");
  EXPECT_EQ(FindUnknown(message, "")->limit, "length-delimited bytes");
  EXPECT_EQ(FindUnknown(message, "")->message, "is encoded as a varint");
  // open as a varint
  ASSERT_TRUE(message.ParseFromString(std::string("\x10\x07", 2)));
  ExpectUnknown(message, Reason::kMalformedMessage, "open");
}

TEST(Strictness, FieldInAnotherWireFormIsNotIgnored) {
  IgnoredFields ignored;
  v1::StreamRequest message = StepWithAMask();
  v1::StepRow& row = *message.mutable_step()->mutable_rows(1);
  row.GetReflection()->MutableUnknownFields(&row)->AddLengthDelimited(v1::StepRow::kPositionFieldNumber, "");
  EXPECT_TRUE(ignored.Drop(&message).empty());
  ExpectUnknown(message, Reason::kMalformedMessage, "step.rows[1].position");
}

TEST(Strictness, UnknownEnumValue) {
  v1::StreamRequest message = StepWithAMask();
  message.mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(77));
  ExpectUnknown(message, Reason::kUnknownEnumValue, "step.logits.dtype");
  EXPECT_EQ(FindUnknown(message, "")->limit, "sortition.v1.DType");
  message.mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(-1));
  ExpectUnknown(message, Reason::kUnknownEnumValue, "step.logits.dtype");
}

TEST(Strictness, UnknownEnumValueInAOneof) {
  v1::StreamRequest message;
  message.mutable_open()->mutable_parameters()->mutable_chain()->set_preset(static_cast<v1::Chain::Preset>(9));
  ExpectUnknown(message, Reason::kUnknownEnumValue, "open.parameters.chain.preset");
}

TEST(Strictness, PathStartsAtCallersPrefix) {
  v1::SamplingParameters parameters;
  AddUnknown(&parameters);
  EXPECT_EQ(FindUnknown(parameters, "fork.child.parameters")->field, "fork.child.parameters.#1234");
}

TEST(Strictness, RowsAreLeftToTheirOwnCheck) {
  v1::StreamRequest message = StepWithAMask();
  AddUnknown(message.mutable_step()->mutable_rows(1)->mutable_mask());
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
  AddUnknown(message.mutable_step()->mutable_rows(0));
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
  AddUnknown(message.mutable_step()->mutable_logits());
  EXPECT_EQ(FindUnknownBesideRows(message)->field, "step.logits.#1234");
}

TEST(Strictness, RowsOfShardsAreLeftToTheirOwnCheck) {
  v1::StreamRequest message = StepWithAMask();
  AddUnknown(message.mutable_step()->mutable_rows(1));
  message.mutable_step()->mutable_logits()->mutable_shard();
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
}

// An unknown task takes an unknown number of tensor rows.
TEST(Strictness, UnknownTaskShiftsLaterRows) {
  v1::StreamRequest message = StepWithAMask();
  v1::StepRow& first = *message.mutable_step()->mutable_rows(0);
  first.GetReflection()->MutableUnknownFields(&first)->AddLengthDelimited(kUnknownNumber, "");
  EXPECT_EQ(FindUnknownBesideRows(message)->field, "step.rows[0].#1234");
  first.mutable_draw();
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
  first.clear_draw();
  message.mutable_step()->mutable_rows(1)->set_tensor_row(1);
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
}

// The tokens of a task, or the task itself, in another wire form: their number is unknown.
TEST(Strictness, UnreadableTaskShiftsLaterRows) {
  v1::StreamRequest message = StepWithAMask();
  v1::StepRow& first = *message.mutable_step()->mutable_rows(0);
  first.GetReflection()->MutableUnknownFields(&first)->AddVarint(v1::StepRow::kVerifyDraftFieldNumber, 1);
  EXPECT_EQ(FindUnknownBesideRows(message)->field, "step.rows[0].verify_draft");
  v1::VerifyDraft& chain = *first.mutable_verify_draft();
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
  chain.GetReflection()->MutableUnknownFields(&chain)->AddFixed32(v1::VerifyDraft::kDraftTokensFieldNumber, 1);
  EXPECT_TRUE(FindUnknownBesideRows(message).has_value());
  message.mutable_step()->mutable_rows(1)->set_tensor_row(1);
  EXPECT_FALSE(FindUnknownBesideRows(message).has_value());
}

// Returns the processor time in which a step of `rows` rows is checked, the least of three. The rows give their places.
int64_t TimeOfCheck(uint32_t rows, int field) {
  v1::StreamRequest message;
  v1::StepRow row;
  row.set_tensor_row(0);
  auto& others = *row.GetReflection()->MutableUnknownFields(&row);
  if (field == 0) {  // two tasks
    others.AddLengthDelimited(v1::StepRow::kDrawFieldNumber, "");
    others.AddLengthDelimited(v1::StepRow::kScoreFieldNumber, "");
  } else {
    others.AddLengthDelimited(field, "");
  }
  for (uint32_t i = 0; i < rows; ++i) *message.mutable_step()->add_rows() = row;
  Limits limits;
  limits.max_step_positions = kMostStepPositions;
  const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
  const auto decoded = DecodeFrame(delivery.segments, delivery.bytes, MakeStep, limits);
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  int64_t least = INT64_MAX;
  for (int i = 0; i < 3; ++i) {
    const int64_t start = now();
    EXPECT_FALSE(CheckFrame(std::get<Frame>(decoded), limits).has_value());
    least = std::min(least, now() - start);
  }
  return least;
}

// Four times the rows take four times as long. If each row looked at those behind it, they would take 16 times.
TEST(Strictness, ACheckOfRowsGrowsAsTheyDo) {
  for (const int field : {0, kUnknownNumber}) {
    const int64_t few = TimeOfCheck(kMostStepPositions / 8, field);
    EXPECT_LT(TimeOfCheck(kMostStepPositions / 2, field), 9 * few + 1'000'000) << few;
  }
}

// A list of words has one path, and each of its fields one verdict, however many words there are.
TEST(Strictness, IgnoredFieldsOfAList) {
  IgnoredFields ignored;
  v1::StreamRequest message;
  v1::SamplingParameters& parameters = *message.mutable_open()->mutable_parameters();
  for (int i = 0; i < 1000; ++i) {
    v1::TokenSequence& word = *parameters.add_bad_words();
    for (int field = 0; field < 3; ++field) {
      word.GetReflection()->MutableUnknownFields(&word)->AddVarint(100 + field, 1);
    }
  }
  const std::string path = "open.parameters.bad_words[].#";
  EXPECT_EQ(ignored.Drop(&message), (std::vector<std::string>{path + "100", path + "101", path + "102"}));
  EXPECT_FALSE(FindUnknown(message, "").has_value());
}

TEST(Strictness, IgnoredFieldsAreDroppedAndNamedOnce) {
  IgnoredFields ignored;
  v1::StreamRequest message = StepWithAMask();
  EXPECT_TRUE(ignored.Drop(&message).empty());
  const std::string known = message.SerializeAsString();
  for (int round = 0; round < 2; ++round) {
    for (v1::StepRow& row : *message.mutable_step()->mutable_rows()) AddUnknown(&row);
    AddUnknown(message.mutable_step()->mutable_logits());
    const std::vector<std::string> first = ignored.Drop(&message);
    EXPECT_EQ(first, round == 0 ? (std::vector<std::string>{"step.logits.#1234", "step.rows[].#1234"})
                                : std::vector<std::string>());
    EXPECT_EQ(message.SerializeAsString(), known);
  }
}

TEST(Strictness, PossibleOneofMembersAreNotIgnored) {
  IgnoredFields ignored;
  v1::StreamRequest message = StepWithAMask();
  v1::StepRow& row = *message.mutable_step()->mutable_rows(0);
  row.GetReflection()->MutableUnknownFields(&row)->AddLengthDelimited(kUnknownNumber, "");
  EXPECT_TRUE(ignored.Drop(&message).empty());
  ExpectUnknown(message, Reason::kUnknownField, "step.rows[0].#1234");
  row.mutable_draw();
  EXPECT_EQ(ignored.Drop(&message), std::vector<std::string>{"step.rows[].#1234"});
  // Masks have members that are numbers.
  row.mutable_mask();
  AddUnknown(row.mutable_mask());
  EXPECT_TRUE(ignored.Drop(&message).empty());
  ExpectUnknown(message, Reason::kUnknownField, "step.rows[0].mask.#1234");
}

TEST(Strictness, IgnoredPathsAreBounded) {
  IgnoredFields ignored;
  v1::StreamRequest message = StepWithAMask();
  v1::Step& step = *message.mutable_step();
  const int most = static_cast<int>(kMaxIgnoredFields);
  for (int i = 0; i <= most; ++i) step.GetReflection()->MutableUnknownFields(&step)->AddVarint(100 + i, 1);
  EXPECT_EQ(ignored.Drop(&message).size(), kMaxIgnoredFields);
  ExpectUnknown(message, Reason::kUnknownField, "step.#" + std::to_string(100 + most));
}

TEST(Strictness, EnumValuesAreNotIgnored) {
  IgnoredFields ignored;
  v1::StreamRequest message = StepWithAMask();
  message.mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(77));
  EXPECT_TRUE(ignored.Drop(&message).empty());
  ExpectUnknown(message, Reason::kUnknownEnumValue, "step.logits.dtype");
}

// Visits every field that leads to another message or to an enum, from StreamRequest down. Each is set in a fresh
// message, so that the visit tells its path.
void VisitAll(Message* root, Message* at, const std::string& path, std::set<const Descriptor*>* seen,
              const std::function<void(Message*, const FieldDescriptor*, const std::string&)>& visit) {
  if (!seen->insert(at->GetDescriptor()).second) return;
  const Reflection& reflection = *at->GetReflection();
  for (int i = 0; i < at->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = at->GetDescriptor()->field(i);
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) visit(at, field, name);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    Message* child = field->is_repeated() ? reflection.AddMessage(at, field) : reflection.MutableMessage(at, field);
    const std::string child_path = field->is_repeated() ? name + "[0]" : name;
    visit(child, nullptr, child_path);
    VisitAll(root, child, child_path, seen, visit);
    reflection.ClearField(at, field);
  }
}

TEST(Strictness, EveryMessageTypeAndEnumOfTheContract) {
  v1::StreamRequest root;
  std::set<const Descriptor*> seen;
  std::set<std::string> messages;
  std::set<std::string> enums;
  VisitAll(&root, &root, "", &seen, [&](Message* at, const FieldDescriptor* field, const std::string& path) {
    const Reflection& reflection = *at->GetReflection();
    ASSERT_FALSE(FindUnknown(root, "").has_value()) << path;
    ASSERT_FALSE(ScanStream(root.SerializeAsString()).may_have_unknown) << path;
    if (field == nullptr) {
      AddUnknown(at);
      ExpectUnknown(root, Reason::kUnknownField, path + ".#1234");
      reflection.MutableUnknownFields(at)->Clear();
      messages.emplace(at->GetDescriptor()->full_name());
    } else {
      ASSERT_FALSE(field->is_repeated());
      reflection.SetEnumValue(at, field, 1000);
      ExpectUnknown(root, Reason::kUnknownEnumValue, path);
      reflection.ClearField(at, field);
      enums.emplace(field->enum_type()->full_name());
    }
  });
  // ErrorReason and Cause are reached through the answer in bring_answer.
  EXPECT_EQ(enums, (std::set<std::string>{
                       "sortition.v1.Chain.Preset", "sortition.v1.DType", "sortition.v1.DraftSampling",
                       "sortition.v1.ErrorReason", "sortition.v1.FinishReason", "sortition.v1.NanPolicy",
                       "sortition.v1.RequiredLogits.Cause", "sortition.v1.UnknownFields", "sortition.v1.VerifyMode"}));
  EXPECT_EQ(messages.count("sortition.v1.Dry"), 1u);
  EXPECT_EQ(messages.count("sortition.v1.TensorSource.MemoryRegion"), 1u);
  EXPECT_GE(messages.size(), 40u);
}

}  // namespace
}  // namespace sortition::service::strictness_test
