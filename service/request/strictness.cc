// Walks messages by reflection, so that messages added to the contract are covered.
#include "service/request/strictness.h"

#include <set>
#include <string>
#include <utility>
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
using google::protobuf::UnknownField;

bool IsSearched(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
}

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

// Returns the fields of a type that lead to messages and enums. The table is thread-local, so that steps, which look it
// up for each row, take no lock.
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

// Returns true if everything but the field `skipped` is known. Does not build the path that an error needs.
bool IsKnown(const Message& message, const FieldDescriptor* skipped = nullptr) {
  const Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) return false;
  for (const FieldDescriptor* field : FieldsToSearch(*message.GetDescriptor())) {
    if (field == skipped) continue;
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : reflection.HasField(message, field);
    for (int i = 0; i < size; ++i) {
      if (is_message) {
        const Message& below = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                    : reflection.GetMessage(message, field);
        if (!IsKnown(below, skipped)) {
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

std::optional<Refusal> Explain(const Message& message, absl::string_view path, const FieldDescriptor* skipped);

std::optional<Refusal> CheckField(const Message& message, const FieldDescriptor& field, absl::string_view path,
                                  const FieldDescriptor* skipped) {
  const Reflection& reflection = *message.GetReflection();
  const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (!field.is_repeated()) {
    const std::string at = Join(path, field.name());
    if (is_message) return Explain(reflection.GetMessage(message, &field), at, skipped);
    return CheckEnum(field, reflection.GetEnumValue(message, &field), at);
  }
  const int size = reflection.FieldSize(message, &field);
  for (int i = 0; i < size; ++i) {
    const std::string at = absl::StrCat(Join(path, field.name()), "[", i, "]");
    std::optional<Refusal> refusal = is_message
                                         ? Explain(reflection.GetRepeatedMessage(message, &field, i), at, skipped)
                                         : CheckEnum(field, reflection.GetRepeatedEnumValue(message, &field, i), at);
    if (refusal) return refusal;
  }
  return std::nullopt;
}

std::optional<Refusal> Explain(const Message& message, absl::string_view path, const FieldDescriptor* skipped) {
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
    if (!IsSearched(*field) || field == skipped) continue;
    if (std::optional<Refusal> refusal = CheckField(message, *field, path, skipped)) return refusal;
  }
  return std::nullopt;
}

// Returns true if an unknown field of `message` with this wire type may be a member of one of its oneofs that is unset.
// A oneof whose known members are all messages has no other members in later versions either.
bool MayBeMember(const Message& message, UnknownField::Type type) {
  const Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.real_oneof_decl_count(); ++i) {
    const google::protobuf::OneofDescriptor& oneof = *descriptor.oneof_decl(i);
    if (message.GetReflection()->HasOneof(message, &oneof)) continue;
    bool has_messages_only = true;
    for (int k = 0; k < oneof.field_count(); ++k) {
      has_messages_only = has_messages_only && oneof.field(k)->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    }
    if (!has_messages_only || type == UnknownField::TYPE_LENGTH_DELIMITED) return true;
  }
  return false;
}

// Returns true if the row may have a task that this server does not know: it may take any number of tensor rows.
bool MayHaveUnknownTask(const v1::StepRow& row) {
  const auto& unknown = row.GetReflection()->GetUnknownFields(row);
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (MayBeMember(row, unknown.field(i).type())) return true;
  }
  return false;
}

const FieldDescriptor* RowsOfAStep() {
  static const FieldDescriptor* const rows = v1::Step::descriptor()->FindFieldByNumber(v1::Step::kRowsFieldNumber);
  return rows;
}

}  // namespace

std::optional<Refusal> FindUnknown(const Message& message, absl::string_view path) {
  if (IsKnown(message)) return std::nullopt;
  return Explain(message, path, nullptr);
}

std::optional<Refusal> FindUnknownBesideRows(const v1::StreamRequest& message) {
  if (message.step().logits().has_shard()) return FindUnknown(message, "");
  if (!IsKnown(message, RowsOfAStep())) return Explain(message, "", RowsOfAStep());
  bool is_shifted = false;
  for (const v1::StepRow& row : message.step().rows()) {
    if (is_shifted && !row.has_tensor_row()) return FindUnknown(message, "");
    is_shifted = is_shifted || MayHaveUnknownTask(row);
  }
  return std::nullopt;
}

std::vector<std::string> IgnoredFields::Drop(Message* message) {
  std::vector<std::string> first;
  if (!IsKnown(*message)) DropFrom(message, "", &first);
  return first;
}

void IgnoredFields::DropFrom(Message* message, const std::string& path, std::vector<std::string>* first) {
  const Reflection& reflection = *message->GetReflection();
  google::protobuf::UnknownFieldSet& unknown = *reflection.MutableUnknownFields(message);
  std::set<int> dropped;
  for (int i = 0; i < unknown.field_count(); ++i) {
    const UnknownField& field = unknown.field(i);
    if (MayBeMember(*message, field.type())) continue;
    std::string name = Join(path, absl::StrCat("#", field.number()));
    if (!paths_.contains(name)) {
      if (paths_.size() == kMostPaths) continue;
      paths_.insert(name);
      first->push_back(std::move(name));
    }
    dropped.insert(field.number());
  }
  for (const int number : dropped) unknown.DeleteByNumber(number);
  for (const FieldDescriptor* field : FieldsToSearch(*message->GetDescriptor())) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string at = Join(path, field->name());
    if (!field->is_repeated()) {
      if (reflection.HasField(*message, field)) DropFrom(reflection.MutableMessage(message, field), at, first);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      DropFrom(reflection.MutableRepeatedMessage(message, field, i), at + "[]", first);
    }
  }
}

}  // namespace sortition::service
