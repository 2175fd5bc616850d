// A walk over the wire format, field by field.
#include "service/request/part_count.h"

#include <algorithm>
#include <limits>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace sortition::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Bytes of the smallest part: a tag, and a length or value.
constexpr size_t kLeastBytes = 2;

// Returns true for a number in the wire form of its field. It costs no more memory than a few times its bytes.
bool IsNumber(const FieldDescriptor& field, WireFormatLite::WireType wire_type) {
  if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) return field.is_packable();
  return wire_type == WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

// False once `*left` does not suffice.
bool Count(CodedInputStream* in, const Descriptor& type, uint32_t* left) {
  while (const uint32_t tag = in->ReadTag()) {
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    if (field == nullptr || !IsNumber(*field, wire_type)) {
      if (*left == 0) return false;
      --*left;
    }
    const bool is_message =
        field != nullptr && field->message_type() != nullptr && wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!is_message) {
      if (!WireFormatLite::SkipField(in, tag)) return true;
      continue;
    }
    const CodedInputStream::Limit limit = in->ReadLengthAndPushLimit();
    if (!Count(in, *field->message_type(), left)) return false;
    in->PopLimit(limit);
  }
  return true;
}

}  // namespace

bool HasAtMostParts(absl::string_view encoded, const Descriptor& type, uint32_t most) {
  if (encoded.size() / kLeastBytes <= most) return true;
  // protobuf reads no message that is longer.
  const auto size = static_cast<int>(std::min<size_t>(encoded.size(), std::numeric_limits<int>::max()));
  CodedInputStream in(reinterpret_cast<const uint8_t*>(encoded.data()), size);
  return Count(&in, type, &most);
}

}  // namespace sortition::service
