// Walks a message by reflection, so that no message added to the contract can be forgotten.
#include "service/request/strictness.h"

#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace sortition::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool IsSearched(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
}

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

// Of a type, the fields below which something may be unknown: messages and enums. A thread's own, so that steps, which
// ask for them row by row, take no lock.
const std::vector<const FieldDescriptor*>& FieldsToSearch(const Descriptor& type) {
  thread_local absl::node_hash_map<const Descriptor*, std::vector<const FieldDescriptor*>> known;
  const auto [it, is_new] = known.try_emplace(&type);
  if (is_new) {
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* const field = type.field(i);
      if (IsSearched(*field)) it->second.push_back(field);
    }
  }
  return it->second;
}

// Whether everything is known, without building the path that an error needs.
bool IsKnown(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return false;
  for (const FieldDescriptor* field : FieldsToSearch(*message.GetDescriptor())) {
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : reflection.HasField(message, field);
    for (int i = 0; i < size; ++i) {
      if (is_message) {
        if (!IsKnown(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                          : reflection.GetMessage(message, field))) {
          return false;
        }
      } else {
        const int value = field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i)
                                               : reflection.GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(value) == nullptr) return false;
      }
    }
  }
  return true;
}

std::optional<Refusal> CheckEnum(const FieldDescriptor& field, int value, absl::string_view path) {
  if (field.enum_type()->FindValueByNumber(value) != nullptr) return std::nullopt;
  return Refusal{Reason::kUnknownEnumValue, std::string(path), std::string(field.enum_type()->full_name()),
                 absl::StrCat("value ", value, " is not known to this server")};
}

std::optional<Refusal> Explain(const Message& message, absl::string_view path);

std::optional<Refusal> CheckField(const Message& message, const FieldDescriptor& field, absl::string_view path) {
  const Reflection& reflection = *message.GetReflection();
  const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (!field.is_repeated()) {
    const std::string at = Join(path, field.name());
    if (is_message) return Explain(reflection.GetMessage(message, &field), at);
    return CheckEnum(field, reflection.GetEnumValue(message, &field), at);
  }
  const int size = reflection.FieldSize(message, &field);
  for (int i = 0; i < size; ++i) {
    const std::string at = absl::StrCat(Join(path, field.name()), "[", i, "]");
    std::optional<Refusal> refusal = is_message
                                         ? Explain(reflection.GetRepeatedMessage(message, &field, i), at)
                                         : CheckEnum(field, reflection.GetRepeatedEnumValue(message, &field, i), at);
    if (refusal) return refusal;
  }
  return std::nullopt;
}

std::optional<Refusal> Explain(const Message& message, absl::string_view path) {
  const Reflection& reflection = *message.GetReflection();
  const auto& unknown = reflection.GetUnknownFields(message);
  if (unknown.field_count() > 0) {
    return Refusal{Reason::kUnknownField, Join(path, absl::StrCat("#", unknown.field(0).number())), "",
                   absl::StrCat("field ", unknown.field(0).number(), " of ", message.GetDescriptor()->full_name(),
                                " is not known to this server")};
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (!IsSearched(*field)) continue;
    if (std::optional<Refusal> refusal = CheckField(message, *field, path)) return refusal;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> FindUnknown(const Message& message, absl::string_view path) {
  if (IsKnown(message)) return std::nullopt;
  return Explain(message, path);
}

}  // namespace sortition::service
