// Sampling parameters by the names of the contract's fields, which are found in its description.
#include <cfloat>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/c/objects.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "service/limits.h"
#include "service/wire/parameter_table.h"

namespace sortition::c {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The setters, one for each type of field.
enum class Setter { kDouble, kUint, kBool, kText, kTokens, kBiases, kAddTokens, kAddText, kNone };

const char* NameOf(Setter setter) {
  switch (setter) {
    case Setter::kDouble:
      return "sortition_parameters_set_double";
    case Setter::kUint:
      return "sortition_parameters_set_uint";
    case Setter::kBool:
      return "sortition_parameters_set_bool";
    case Setter::kText:
      return "sortition_parameters_set_text";
    case Setter::kTokens:
      return "sortition_parameters_set_tokens";
    case Setter::kBiases:
      return "sortition_parameters_set_biases";
    case Setter::kAddTokens:
      return "sortition_parameters_add_tokens";
    case Setter::kAddText:
      return "sortition_parameters_add_text";
    case Setter::kNone:
      break;
  }
  return "";
}

Setter SetterOf(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return field.is_repeated() ? Setter::kNone : Setter::kDouble;
    case FieldDescriptor::CPPTYPE_UINT32:
      return field.is_repeated() ? Setter::kTokens : Setter::kUint;
    case FieldDescriptor::CPPTYPE_UINT64:
      return field.is_repeated() ? Setter::kNone : Setter::kUint;
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.is_repeated() ? Setter::kNone : Setter::kBool;
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.is_repeated() ? Setter::kNone : Setter::kText;
    case FieldDescriptor::CPPTYPE_STRING:
      return field.is_repeated() ? Setter::kAddText : Setter::kText;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!field.is_repeated()) return Setter::kNone;
      if (field.message_type() == v1::LogitBias::descriptor()) return Setter::kBiases;
      if (field.message_type() == v1::TokenSequence::descriptor()) return Setter::kAddTokens;
      return Setter::kNone;
    default:
      return Setter::kNone;
  }
}

// Returns the range of the parameter that `name` is, or is a part of.
std::string FindRange(absl::string_view name) {
  for (const service::ParameterDescription& parameter : service::Parameters()) {
    if (name.substr(0, name.find_first_of(".[")) == absl::string_view(parameter.name.data(), parameter.name.size())) {
      return std::string(parameter.range);
    }
  }
  return "";
}

// Names of the fields that a setter sets below a message.
std::string FieldsOf(absl::string_view name, const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(absl::StrCat(name, ".", message.field(i)->name()));
  return absl::StrJoin(names, ", ");
}

// A field, or the element of a list of messages with fields.
struct Part {
  const FieldDescriptor* field = nullptr;
  int index = -1;  // of the element
};

// A field of the parameters, and the fields above it.
using Path = std::vector<Part>;

// Returns true if the setters set the fields of the list's elements, which are named by their index.
bool HasElements(const FieldDescriptor& field) {
  return field.is_repeated() && field.message_type() == v1::Phase::descriptor();
}

absl::StatusOr<Path> Find(absl::string_view name) {
  Path path;
  const Descriptor* message = v1::SamplingParameters::descriptor();
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    const size_t bracket = part.find('[');
    const std::string plain(part.substr(0, bracket));
    const FieldDescriptor* const field = message != nullptr ? message->FindFieldByName(plain) : nullptr;
    int index = -1;
    if (field != nullptr && bracket != absl::string_view::npos) {
      absl::string_view number = part.substr(bracket + 1);
      if (!HasElements(*field) || !absl::ConsumeSuffix(&number, "]") || !absl::SimpleAtoi(number, &index) ||
          index < 0) {
        return Refuse(v1::UNKNOWN_FIELD, name, "", absl::StrCat("no parameter has this name: ", part));
      }
      if (index >= static_cast<int>(service::kMaxPhases)) {
        return Refuse(v1::OUT_OF_RANGE, name, absl::StrCat("< ", service::kMaxPhases), "no list has so many");
      }
    }
    if (field == nullptr || (HasElements(*field) && index < 0 && part.size() < name.size())) {
      return Refuse(v1::UNKNOWN_FIELD, name, "", absl::StrCat("no parameter has this name: ", part));
    }
    path.push_back({field, index});
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    message = is_message && (!field->is_repeated() || index >= 0) ? field->message_type() : nullptr;
  }
  return path;
}

absl::StatusOr<Path> FindFor(Setter setter, absl::string_view name) {
  auto path = Find(name);
  if (!path.ok()) return path;
  const FieldDescriptor& field = *path->back().field;
  const Setter right = SetterOf(field);
  if (right == setter) return path;
  std::string advice = absl::StrCat("a parameter of another type: ", NameOf(right), " sets it");
  if (right == Setter::kNone) {
    advice = absl::StrCat(
        "a parameter with fields: ",
        FieldsOf(HasElements(field) && path->back().index < 0 ? absl::StrCat(name, "[0]") : std::string(name),
                 *field.message_type()));
  }
  return Refuse(v1::ERROR_REASON_UNSPECIFIED, name, FindRange(name), std::move(advice));
}

// Returns the message that has the last field of the path. Adds elements to a list up to the one that is named.
Message& Holder(Message* message, const Path& path) {
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto& [field, index] = path[i];
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    while (index >= 0 && index >= reflection.FieldSize(*message, field)) reflection.AddMessage(message, field);
    message = index < 0 ? reflection.MutableMessage(message, field)
                        : reflection.MutableRepeatedMessage(message, field, index);
  }
  return *message;
}

// Turns the field off, without creating any of the messages above it.
void Clear(Message* message, const Path& path) {
  for (size_t i = 0; i < path.size(); ++i) {
    const auto& [field, index] = path[i];
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    if (index >= 0 && index >= reflection.FieldSize(*message, field)) return;
    if (i + 1 == path.size()) break;
    if (index < 0 && !reflection.HasField(*message, field)) return;
    message = index < 0 ? reflection.MutableMessage(message, field)
                        : reflection.MutableRepeatedMessage(message, field, index);
  }
  const auto& [last, index] = path.back();
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (index < 0) return reflection.ClearField(message, last);
  for (int i = index; i + 1 < reflection.FieldSize(*message, last); ++i)
    reflection.SwapElements(message, last, i, i + 1);
  reflection.RemoveLast(message, last);
}

// Runs `set` on the message that has the named field.
template <typename Set>
sortition_code Change(sortition_parameters* parameters, Setter setter, const char* name, sortition_error** error,
                      const Set& set) noexcept {
  return Call(error, [&]() -> absl::Status {
    auto found = AllParameters::All().Find(parameters, "parameters");
    if (!found.ok()) return found.status();
    if (name == nullptr) return Missing("name");
    auto path = FindFor(setter, name);
    if (!path.ok()) return path.status();
    return set(found->get(), *path);
  });
}

absl::Status SetText(Message* parameters, const Path& path, const char* name, const char* value) {
  auto text = Text(value, name);
  if (!text.ok()) return text.status();
  const FieldDescriptor& field = *path.back().field;
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
    Message& holder = Holder(parameters, path);
    holder.GetReflection()->SetString(&holder, &field, *std::move(text));
    return absl::OkStatus();
  }
  const auto* const number = field.enum_type()->FindValueByName(*text);
  if (number == nullptr) {
    std::vector<std::string> names;
    for (int i = 0; i < field.enum_type()->value_count(); ++i) names.emplace_back(field.enum_type()->value(i)->name());
    return Refuse(v1::UNKNOWN_ENUM_VALUE, name, absl::StrJoin(names, ", "), absl::StrCat("no name: ", *text));
  }
  Message& holder = Holder(parameters, path);
  holder.GetReflection()->SetEnum(&holder, &field, number);
  return absl::OkStatus();
}

absl::Status SetUint(Message* parameters, const Path& path, const char* name, uint64_t value) {
  const FieldDescriptor& field = *path.back().field;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    Message& holder = Holder(parameters, path);
    holder.GetReflection()->SetUInt64(&holder, &field, value);
    return absl::OkStatus();
  }
  if (value > UINT32_MAX) {
    return Refuse(v1::OUT_OF_RANGE, name, absl::StrCat("0..", UINT32_MAX), absl::StrCat(value, " is too large"));
  }
  Message& holder = Holder(parameters, path);
  holder.GetReflection()->SetUInt32(&holder, &field, static_cast<uint32_t>(value));
  return absl::OkStatus();
}

}  // namespace
}  // namespace sortition::c

extern "C" {

using google::protobuf::Message;
using sortition::c::AllParameters;
using sortition::c::Change;
using sortition::c::Holder;
using sortition::c::Path;
using sortition::c::Setter;
using sortition::c::Span;
namespace v1 = sortition::v1;

sortition_code sortition_parameters_new(sortition_parameters** parameters, sortition_error** error) {
  return sortition::c::Make(parameters, "parameters", error, []() -> absl::StatusOr<sortition_parameters*> {
    return AllParameters::All().Add(std::make_shared<v1::SamplingParameters>());
  });
}

sortition_code sortition_parameters_copy(const sortition_parameters* from, sortition_parameters** copy,
                                         sortition_error** error) {
  return sortition::c::Make(copy, "copy", error, [&]() -> absl::StatusOr<sortition_parameters*> {
    auto found = AllParameters::All().Find(from, "from");
    if (!found.ok()) return found.status();
    return AllParameters::All().Add(std::make_shared<v1::SamplingParameters>(**found));
  });
}

sortition_code sortition_parameters_close(sortition_parameters* parameters, sortition_error** error) {
  return sortition::c::Call(error, [&] { return AllParameters::All().Remove(parameters, "parameters").status(); });
}

sortition_code sortition_parameters_set_double(sortition_parameters* parameters, const char* name, double value,
                                               sortition_error** error) {
  return Change(parameters, Setter::kDouble, name, error, [&](Message* message, const Path& path) -> absl::Status {
    if (std::isfinite(value) && std::abs(value) > FLT_MAX) {
      return sortition::c::Refuse(v1::OUT_OF_RANGE, name, sortition::c::FindRange(name), "no float is that large");
    }
    Message& holder = Holder(message, path);
    holder.GetReflection()->SetFloat(&holder, path.back().field, static_cast<float>(value));
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_set_uint(sortition_parameters* parameters, const char* name, uint64_t value,
                                             sortition_error** error) {
  return Change(parameters, Setter::kUint, name, error,
                [&](Message* message, const Path& path) { return sortition::c::SetUint(message, path, name, value); });
}

sortition_code sortition_parameters_set_bool(sortition_parameters* parameters, const char* name, int32_t value,
                                             sortition_error** error) {
  return Change(parameters, Setter::kBool, name, error, [&](Message* message, const Path& path) {
    Message& holder = Holder(message, path);
    holder.GetReflection()->SetBool(&holder, path.back().field, value != 0);
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_set_text(sortition_parameters* parameters, const char* name, const char* value,
                                             sortition_error** error) {
  return Change(parameters, Setter::kText, name, error,
                [&](Message* message, const Path& path) { return sortition::c::SetText(message, path, name, value); });
}

sortition_code sortition_parameters_set_tokens(sortition_parameters* parameters, const char* name,
                                               const uint32_t* tokens, size_t count, sortition_error** error) {
  return Change(parameters, Setter::kTokens, name, error, [&](Message* message, const Path& path) -> absl::Status {
    const auto list = Span(tokens, count, "tokens");
    if (!list.ok()) return list.status();
    Message& holder = Holder(message, path);
    holder.GetReflection()->ClearField(&holder, path.back().field);
    for (const uint32_t token : *list) holder.GetReflection()->AddUInt32(&holder, path.back().field, token);
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_set_biases(sortition_parameters* parameters, const char* name,
                                               const uint32_t* tokens, const float* biases, size_t count,
                                               sortition_error** error) {
  return Change(parameters, Setter::kBiases, name, error, [&](Message* message, const Path& path) -> absl::Status {
    const auto list = Span(tokens, count, "tokens");
    if (!list.ok()) return list.status();
    if (const auto values = Span(biases, count, "biases"); !values.ok()) return values.status();
    Message& holder = Holder(message, path);
    holder.GetReflection()->ClearField(&holder, path.back().field);
    for (size_t i = 0; i < count; ++i) {
      auto& bias = static_cast<v1::LogitBias&>(*holder.GetReflection()->AddMessage(&holder, path.back().field));
      bias.set_token(tokens[i]);
      bias.set_bias(biases[i]);
    }
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_add_tokens(sortition_parameters* parameters, const char* name,
                                               const uint32_t* tokens, size_t count, sortition_error** error) {
  return Change(parameters, Setter::kAddTokens, name, error, [&](Message* message, const Path& path) -> absl::Status {
    const auto list = Span(tokens, count, "tokens");
    if (!list.ok()) return list.status();
    Message& holder = Holder(message, path);
    auto& added = static_cast<v1::TokenSequence&>(*holder.GetReflection()->AddMessage(&holder, path.back().field));
    added.mutable_tokens()->Assign(list->begin(), list->end());
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_add_text(sortition_parameters* parameters, const char* name, const char* value,
                                             sortition_error** error) {
  return Change(parameters, Setter::kAddText, name, error, [&](Message* message, const Path& path) -> absl::Status {
    auto text = sortition::c::Text(value, name);
    if (!text.ok()) return text.status();
    Message& holder = Holder(message, path);
    holder.GetReflection()->AddString(&holder, path.back().field, *std::move(text));
    return absl::OkStatus();
  });
}

sortition_code sortition_parameters_clear(sortition_parameters* parameters, const char* name, sortition_error** error) {
  return sortition::c::Call(error, [&]() -> absl::Status {
    auto found = AllParameters::All().Find(parameters, "parameters");
    if (!found.ok()) return found.status();
    if (name == nullptr) return sortition::c::Missing("name");
    const auto path = sortition::c::Find(name);
    if (!path.ok()) return path.status();
    sortition::c::Clear(found->get(), *path);
    return absl::OkStatus();
  });
}

}  // extern "C"
