// A walk down a message by reflection.
#include "tests/fuzz/bend.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace sortition::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

uint32_t BentWord(Input* input) { return input->OneIn(2) ? input->Word() : input->Word() >> input->Below(32); }

void BendElement(Input* input, const FieldDescriptor& field, int at, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetRepeatedUInt32(message, &field, at, BentWord(input));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetRepeatedInt32(message, &field, at, int32_t(BentWord(input)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetRepeatedFloat(message, &field, at, std::bit_cast<float>(BentWord(input)));
    default:
      return;
  }
}

}  // namespace

void Bend(Input* input, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  if (fields.empty() || input->OneIn(4)) {
    fields.clear();
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      fields.push_back(message->GetDescriptor()->field(i));
    }
  }
  if (fields.empty()) return;
  const FieldDescriptor& field = *fields[input->Below(uint32_t(fields.size()))];
  const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  const uint32_t way = input->Below(8);
  if (way == 0) return reflection.ClearField(message, &field);
  if (field.is_repeated()) {
    const int size = reflection.FieldSize(*message, &field);
    if (is_message && (size == 0 || way == 1)) {
      return size == 0 ? Bend(input, reflection.AddMessage(message, &field))
                       : reflection.AddMessage(message, &field)
                             ->CopyFrom(reflection.GetRepeatedMessage(*message, &field, size - 1));
    }
    if (size == 0) return;
    const int at = int(input->Below(uint32_t(size)));
    if (way == 2) return reflection.RemoveLast(message, &field);
    if (way == 3) return reflection.SwapElements(message, &field, at, size - 1);
    return is_message ? Bend(input, reflection.MutableRepeatedMessage(message, &field, at))
                      : BendElement(input, field, at, message);
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Bend(input, reflection.MutableMessage(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, &field, BentWord(input));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, &field, int32_t(BentWord(input)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, &field, uint64_t{BentWord(input)} << input->Below(33));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, &field, int64_t(uint64_t{BentWord(input)} << input->Below(33)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, &field, std::bit_cast<float>(BentWord(input)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, &field, !reflection.GetBool(*message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(message, &field, int32_t(input->Below(16)));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, &field, std::string(input->Below(300), 's'));
    default:
      return;
  }
}

}  // namespace sortition::fuzz
