// Compares the published parameters with the contract, and with the values that an open accepts.
#include "service/wire/parameter_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "kernels/law/options.h"
#include "service/wire/open_request.h"
#include "service/wire/sample_request.h"
#include "tests/support/messages.h"

namespace sortition::service::parameter_table_test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const std::set<std::string> kStepParameters = {"draw_salt", "mask", "score", "verify_draft", "verify_tree"};

TEST(ParameterTable, NamesEqualContractsFields) {
  std::set<std::string> sequence_names;
  std::set<std::string> step_names;
  for (const ParameterDescription& parameter : Parameters()) {
    const std::string name(parameter.name);
    std::set<std::string>& names = parameter.is_per_step ? step_names : sequence_names;
    EXPECT_TRUE(names.insert(name).second) << name << " is listed twice";
    EXPECT_FALSE(parameter.description.empty()) << name;
    EXPECT_FALSE(parameter.default_value.empty()) << name;
  }
  const auto& descriptor = *v1::SamplingParameters::descriptor();
  std::set<std::string> fields;
  for (int i = 0; i < descriptor.field_count(); ++i) fields.emplace(descriptor.field(i)->name());
  EXPECT_EQ(sequence_names, fields);
  EXPECT_EQ(step_names, kStepParameters);
  for (const std::string& name : step_names) EXPECT_NE(v1::StepRow::descriptor()->FindFieldByName(name), nullptr);
}

// Adds the paths of all numbers below a message that are set once.
void AddNumbers(const google::protobuf::Descriptor& message, const std::string& path, std::set<std::string>* numbers) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.is_repeated()) continue;
    if (field.message_type() != nullptr) {
      AddNumbers(*field.message_type(), path + field.name() + ".", numbers);
    } else if (field.type() == FieldDescriptor::TYPE_FLOAT || field.type() == FieldDescriptor::TYPE_UINT32) {
      numbers->insert(path + field.name());
    }
  }
}

TEST(ParameterTable, NumbersEqualContractsFields) {
  std::set<std::string> fields;
  AddNumbers(*v1::SamplingParameters::descriptor(), "", &fields);
  for (const char* const kind : {"raw", "processed", "tempered"}) fields.erase(std::string(kind) + "_logprobs.top");
  std::set<std::string> numbers;
  for (const law::NumberOption& number : law::kNumberOptions) numbers.emplace(number.field);
  EXPECT_EQ(numbers, fields);
}

TEST(ParameterTable, EveryFeatureHasAName) {
  EXPECT_TRUE(NamesOf(kernels::kNoFeatures).empty());
  for (int bit = 0; bit < 64; ++bit) {
    const kernels::Features feature = kernels::Features{1} << bit;
    EXPECT_EQ(NamesOf(feature).empty(), (feature & kernels::kAllFeatures) == 0) << bit;
  }
  // A name is an option, a task, a verify mode or a way of drafting of the contract.
  for (const std::string_view name : NamesOf(kernels::kAllFeatures)) {
    v1::VerifyMode mode;
    v1::DraftSampling sampling;
    const auto is_listed = [&](const ParameterDescription& parameter) { return parameter.name == name; };
    EXPECT_TRUE(std::ranges::any_of(Parameters(), is_listed) || v1::VerifyMode_Parse(std::string(name), &mode) ||
                v1::DraftSampling_Parse(std::string(name), &sampling))
        << name;
  }
}

// Sets a field, and everything below it, to something that is not its off value.
void TurnOn(Message* message, const FieldDescriptor* field) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* child =
          field->is_repeated() ? reflection.AddMessage(message, field) : reflection.MutableMessage(message, field);
      const auto& descriptor = *child->GetDescriptor();
      // All of a phase's parameters contradict each other.
      if (child->GetDescriptor() == v1::SamplingParameters::descriptor()) break;
      for (int i = 0; i < descriptor.field_count(); ++i) TurnOn(child, descriptor.field(i));
      break;
    }
    case FieldDescriptor::CPPTYPE_FLOAT:
      reflection.SetFloat(message, field, field->name() == "base" ? 1.5f : 0.5f);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection.SetBool(message, field, true);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      reflection.SetEnumValue(message, field, 1);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      if (field->is_repeated()) {
        reflection.AddUInt32(message, field, 1);
      } else {
        reflection.SetUInt32(message, field, field->name() == "m" || field->name() == "repeats" ? 2 : 1);
      }
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      reflection.SetUInt64(message, field, 1);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.AddString(message, field, "top_k");
      break;
    default:
      FAIL() << field->full_name() << " has a type this test does not know";
  }
}

TEST(ParameterTable, OpenAcceptsEveryOption) {
  for (const ParameterDescription& parameter : Parameters()) {
    if (parameter.is_per_step) continue;
    const std::string name(parameter.name);
    v1::OpenSequence open = testing::MakeOpen("a", 1, 100);
    TurnOn(open.mutable_parameters(), v1::SamplingParameters::descriptor()->FindFieldByName(name));
    // min_tokens contradicts parameters without stop tokens.
    if (name == "min_tokens") open.mutable_parameters()->add_stop_token_ids(1);
    // Names tokens for logprobs; another option requests the logprobs.
    if (name == "logprob_token_ids") open.mutable_parameters()->mutable_raw_logprobs();
    if (name == "quadratic_smoothing") open.mutable_parameters()->mutable_quadratic_smoothing()->set_curve(1.5f);
    SystemEntropy entropy;
    const auto parsed = ParseOpen(open, Limits(), "open", &entropy);
    const auto* refusal = std::get_if<Refusal>(&parsed);
    EXPECT_EQ(refusal, nullptr) << name << ": " << (refusal == nullptr ? "" : refusal->message);
  }
}

// A phase replaces the options that the table names, and no others.
TEST(ParameterTable, PhasesTakeTheOptionsThatTheyMayReplace) {
  for (const ParameterDescription& parameter : Parameters()) {
    if (parameter.is_per_step) continue;
    const std::string name(parameter.name);
    v1::OpenSequence open = testing::MakeOpen("a", 1, 100);
    v1::Phase& phase = *open.mutable_parameters()->add_phases();
    phase.add_end(1);
    TurnOn(phase.mutable_parameters(), v1::SamplingParameters::descriptor()->FindFieldByName(name));
    if (name == "quadratic_smoothing") phase.mutable_parameters()->mutable_quadratic_smoothing()->set_curve(1.5f);
    SystemEntropy entropy;
    const auto parsed = ParseOpen(open, Limits(), "open", &entropy);
    const auto* refusal = std::get_if<Refusal>(&parsed);
    EXPECT_EQ(refusal == nullptr, parameter.in_phases) << name << ": " << (refusal == nullptr ? "" : refusal->message);
    if (refusal == nullptr) continue;
    EXPECT_EQ(refusal->reason, Reason::kContradiction) << name;
    EXPECT_EQ(refusal->field, "open.parameters.phases[0].parameters." + name);
  }
}

// Calls of Sample refuse exactly the options for which a stream would keep a state.
TEST(ParameterTable, StatefulOptionsAreNamed) {
  int stateful = 0;
  for (const ParameterDescription& parameter : Parameters()) {
    if (parameter.is_per_step) continue;
    const std::string name(parameter.name);
    v1::OpenSequence open = testing::MakeOpen("a", 1, 100);
    TurnOn(open.mutable_parameters(), v1::SamplingParameters::descriptor()->FindFieldByName(name));
    if (name == "min_tokens") open.mutable_parameters()->add_stop_token_ids(1);
    if (name == "logprob_token_ids") open.mutable_parameters()->mutable_raw_logprobs();
    if (name == "quadratic_smoothing") open.mutable_parameters()->mutable_quadratic_smoothing()->set_curve(1.5f);
    SystemEntropy entropy;
    const auto parsed = ParseOpen(open, Limits(), "open", &entropy);
    ASSERT_TRUE(std::holds_alternative<OpenRequest>(parsed)) << name;
    const SequenceSpec& spec = *std::get<OpenRequest>(parsed).spec;
    const bool keeps = spec.stateful() || kernels::KeepsSamplerState(spec.parameters.chain);
    EXPECT_EQ(FindStatefulOption(open.parameters()), keeps ? name : "") << name;
    stateful += keeps;
  }
  EXPECT_EQ(stateful, 12);
  v1::SamplingParameters words;
  words.add_bad_words()->add_tokens(1);
  EXPECT_EQ(FindStatefulOption(words), "");
  words.mutable_bad_words(0)->add_tokens(2);
  EXPECT_EQ(FindStatefulOption(words), "bad_words");
}

}  // namespace
}  // namespace sortition::service::parameter_table_test
