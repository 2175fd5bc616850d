// Walks messages by reflection, so that messages added to the contract are covered.
#include "service/wire/strictness.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/wire_format_lite.h"

namespace sortition::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::internal::WireFormatLite;

bool IsSearched(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE || field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
}

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

// Returns the field of the contract that protobuf has kept as unknown because it came in another wire form; null if
// this server does not know the number.
const FieldDescriptor* InWrongForm(const Message& message, const UnknownField& unknown) {
  return message.GetDescriptor()->FindFieldByNumber(unknown.number());
}

absl::string_view FormOf(const UnknownField& unknown) {
  switch (unknown.type()) {
    case UnknownField::TYPE_VARINT:
      return "a varint";
    case UnknownField::TYPE_FIXED32:
      return "32 bits";
    case UnknownField::TYPE_FIXED64:
      return "64 bits";
    case UnknownField::TYPE_LENGTH_DELIMITED:
      return "length-delimited bytes";
    case UnknownField::TYPE_GROUP:
      break;
  }
  return "a group";
}

absl::string_view FormOf(const FieldDescriptor& field) {
  switch (WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()))) {
    case WireFormatLite::WIRETYPE_VARINT:
      return "a varint";
    case WireFormatLite::WIRETYPE_FIXED32:
      return "32 bits";
    case WireFormatLite::WIRETYPE_FIXED64:
      return "64 bits";
    default:
      return "length-delimited bytes";
  }
}

Refusal RefusalOfUnknown(const Message& message, const UnknownField& unknown, absl::string_view path) {
  if (const FieldDescriptor* const field = InWrongForm(message, unknown)) {
    return {Reason::kMalformedMessage, Join(path, field->name()), std::string(FormOf(*field)),
            absl::StrCat("is encoded as ", FormOf(unknown))};
  }
  return {Reason::kUnknownField, Join(path, absl::StrCat("#", unknown.number())), "",
          absl::StrCat("field ", unknown.number(), " of ", message.GetDescriptor()->full_name(),
                       " is not known to this server")};
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
  if (unknown.field_count() > 0) return RefusalOfUnknown(message, unknown.field(0), path);
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (!IsSearched(*field) || field == skipped) continue;
    if (std::optional<Refusal> refusal = CheckField(message, *field, path, skipped)) return refusal;
  }
  return std::nullopt;
}

// Returns true if an unknown field of `message` may be a member of one of its oneofs that is unset. A oneof whose known
// members are all messages has no other members in later versions either.
bool MayBeMember(const Message& message, const UnknownField& unknown) {
  const Descriptor& descriptor = *message.GetDescriptor();
  const FieldDescriptor* const known = InWrongForm(message, unknown);
  for (int i = 0; i < descriptor.real_oneof_decl_count(); ++i) {
    const google::protobuf::OneofDescriptor& oneof = *descriptor.oneof_decl(i);
    if (message.GetReflection()->HasOneof(message, &oneof)) continue;
    if (known != nullptr) {
      if (known->real_containing_oneof() == &oneof) return true;
      continue;
    }
    bool has_messages_only = true;
    for (int k = 0; k < oneof.field_count(); ++k) {
      has_messages_only = has_messages_only && oneof.field(k)->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    }
    if (!has_messages_only || unknown.type() == UnknownField::TYPE_LENGTH_DELIMITED) return true;
  }
  return false;
}

const Message& TaskOf(const v1::StepRow& row) {
  switch (row.task_case()) {
    case v1::StepRow::kScore:
      return row.score();
    case v1::StepRow::kVerifyDraft:
      return row.verify_draft();
    case v1::StepRow::kVerifyTree:
      return row.verify_tree();
    default:
      return row.draw();
  }
}

// Returns true if the row may take any number of tensor rows: it may have a task that this server does not know, or
// the tokens of its task may have come in another wire form.
bool MayTakeAnyTensorRows(const v1::StepRow& row) {
  if (!row.compact().empty()) return false;
  const auto& unknown = row.GetReflection()->GetUnknownFields(row);
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (MayBeMember(row, unknown.field(i))) return true;
    // A compact row in another wire form takes none.
    if (unknown.field(i).number() == v1::StepRow::kCompactFieldNumber) return true;
  }
  const Message& task = TaskOf(row);
  const auto& of_task = task.GetReflection()->GetUnknownFields(task);
  for (int i = 0; i < of_task.field_count(); ++i) {
    if (InWrongForm(task, of_task.field(i)) != nullptr) return true;
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
  if (!IsKnown(message, RowsOfAStep())) return Explain(message, "", RowsOfAStep());
  const v1::Step& step = message.step();
  for (int i = 0; i < step.rows_size(); ++i) {
    if (!MayTakeAnyTensorRows(step.rows(i))) continue;
    if (IsPlacedByRow(step, static_cast<uint32_t>(i))) return FindUnknown(message, "");
  }
  return std::nullopt;
}

bool IsPlacedByRow(const v1::Step& step, uint32_t row) {
  for (int i = static_cast<int>(row) + 1; i < step.rows_size(); ++i) {
    if (!step.rows(i).has_tensor_row() && step.rows(i).compact().empty()) return true;
  }
  return false;
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
    if (InWrongForm(*message, field) != nullptr || MayBeMember(*message, field)) continue;
    std::string name = Join(path, absl::StrCat("#", field.number()));
    if (!paths_.contains(name)) {
      if (paths_.size() == kMaxIgnoredFields) continue;
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
