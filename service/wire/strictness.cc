// Walks messages by reflection, so that messages added to the contract are covered.
#include "service/wire/strictness.h"

#include <algorithm>
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
    std::ranges::sort(it->second, {}, &FieldDescriptor::number);
  }
  return it->second;
}

// Searches a message once. Only a refusal has its path made.
class Search {
  // A field on the way to a message.
  struct Place {
    const Place* above;
    const FieldDescriptor& field;
    int index;  // in a repeated field
  };

 public:
  // `path`: the message's own. `skipped`: a field that is not searched, or null.
  Search(absl::string_view path, const FieldDescriptor* skipped) : path_(path), skipped_(skipped) {}

  std::optional<Refusal> Find(const Message& message, const std::vector<const FieldDescriptor*>& fields,
                              const Place* place) const {
    const Reflection& reflection = *message.GetReflection();
    const auto& unknown = reflection.GetUnknownFields(message);
    if (!unknown.empty()) return RefusalOfUnknown(message, unknown.field(0), PathOf(place));
    for (const FieldDescriptor* field : fields) {
      if (field == skipped_) continue;
      const int size =
          field->is_repeated() ? reflection.FieldSize(message, field) : reflection.HasField(message, field);
      if (size == 0) continue;
      auto refusal = field->message_type() != nullptr ? FindInMessages(message, *field, size, place)
                                                      : FindInValues(message, *field, size, place);
      if (refusal) return refusal;
    }
    return std::nullopt;
  }

 private:
  std::optional<Refusal> FindInMessages(const Message& message, const FieldDescriptor& field, int size,
                                        const Place* place) const {
    const Reflection& reflection = *message.GetReflection();
    const auto& fields = FieldsToSearch(*field.message_type());
    for (int i = 0; i < size; ++i) {
      const Message& below = field.is_repeated() ? reflection.GetRepeatedMessage(message, &field, i)
                                                 : reflection.GetMessage(message, &field);
      const Place its{place, field, i};
      if (auto refusal = Find(below, fields, &its)) return refusal;
    }
    return std::nullopt;
  }

  std::optional<Refusal> FindInValues(const Message& message, const FieldDescriptor& field, int size,
                                      const Place* place) const {
    const Reflection& reflection = *message.GetReflection();
    for (int i = 0; i < size; ++i) {
      const int value = field.is_repeated() ? reflection.GetRepeatedEnumValue(message, &field, i)
                                            : reflection.GetEnumValue(message, &field);
      if (field.enum_type()->FindValueByNumber(value) != nullptr) continue;
      const Place its{place, field, i};
      return Refusal{Reason::kUnknownEnumValue, PathOf(&its), std::string(field.enum_type()->full_name()),
                     absl::StrCat("value ", value, " is not known to this server")};
    }
    return std::nullopt;
  }

  std::string PathOf(const Place* place) const {
    if (place == nullptr) return std::string(path_);
    const std::string name = Join(PathOf(place->above), place->field.name());
    return place->field.is_repeated() ? absl::StrCat(name, "[", place->index, "]") : name;
  }

  const absl::string_view path_;
  const FieldDescriptor* const skipped_;
};

std::optional<Refusal> FindBeside(const FieldDescriptor* skipped, const Message& message, absl::string_view path) {
  return Search(path, skipped).Find(message, FieldsToSearch(*message.GetDescriptor()), nullptr);
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
  return FindBeside(nullptr, message, path);
}

std::optional<Refusal> FindUnknownBesideRows(const v1::StreamRequest& message) {
  if (auto refusal = FindBeside(RowsOfAStep(), message, "")) return refusal;
  const v1::Step& step = message.step();
  const int end = static_cast<int>(FindLastPlaced(step).value_or(0));
  for (int i = 0; i < end; ++i) {
    if (MayTakeAnyTensorRows(step.rows(i))) return FindUnknown(message, "");
  }
  return std::nullopt;
}

std::optional<uint32_t> FindLastPlaced(const v1::Step& step) {
  for (int i = step.rows_size() - 1; i >= 0; --i) {
    if (!step.rows(i).has_tensor_row() && step.rows(i).compact().empty()) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

std::vector<std::string> IgnoredFields::Drop(Message* message) {
  std::vector<std::string> first;
  List list;
  DropFrom(message, FieldsToSearch(*message->GetDescriptor()), &list, &first);
  return first;
}

bool IgnoredFields::Ignores(int number, List* list, std::vector<std::string>* first) {
  const auto [it, is_new] = list->ignored.try_emplace(number);
  if (!is_new) return it->second;
  std::string name = Join(list->path, absl::StrCat("#", number));
  it->second = paths_.contains(name) || paths_.size() < kMaxIgnoredFields;
  if (it->second && paths_.insert(name).second) first->push_back(std::move(name));
  return it->second;
}

void IgnoredFields::DropFrom(Message* message, const std::vector<const FieldDescriptor*>& fields, List* list,
                             std::vector<std::string>* first) {
  const Reflection& reflection = *message->GetReflection();
  if (!reflection.GetUnknownFields(*message).empty()) {
    google::protobuf::UnknownFieldSet& unknown = *reflection.MutableUnknownFields(message);
    google::protobuf::UnknownFieldSet kept;
    for (int i = 0; i < unknown.field_count(); ++i) {
      const UnknownField& field = unknown.field(i);
      const bool is_ignored = InWrongForm(*message, field) == nullptr && !MayBeMember(*message, field) &&
                              Ignores(field.number(), list, first);
      if (!is_ignored) kept.AddField(field);
    }
    unknown.Swap(&kept);
  }
  for (const FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr) continue;
    const int size =
        field->is_repeated() ? reflection.FieldSize(*message, field) : reflection.HasField(*message, field);
    if (size == 0) continue;
    List below{absl::StrCat(Join(list->path, field->name()), field->is_repeated() ? "[]" : "")};
    const auto& fields_below = FieldsToSearch(*field->message_type());
    for (int i = 0; i < size; ++i) {
      DropFrom(field->is_repeated() ? reflection.MutableRepeatedMessage(message, field, i)
                                    : reflection.MutableMessage(message, field),
               fields_below, &below, first);
    }
  }
}

}  // namespace sortition::service
