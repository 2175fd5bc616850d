// A walk over the wire format, field by field.
#include "service/request/wire_scan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "kernels/check.h"
#include "sortition/v1/sampling.pb.h"

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

CodedInputStream StreamOver(absl::string_view encoded) {
  // protobuf reads no message that is longer.
  const auto size = static_cast<int>(std::min<size_t>(encoded.size(), std::numeric_limits<int>::max()));
  return CodedInputStream(reinterpret_cast<const uint8_t*>(encoded.data()), size);
}

// A message type as the search for fields that are set twice needs it.
struct Shape {
  struct Field {
    const FieldDescriptor* field = nullptr;  // null: unknown
    // Number that a field shares with the other members of its oneof. A repeated field has one to count its elements.
    uint32_t slot = 0;
    const Shape* below = nullptr;  // of a message
  };
  std::vector<Field> fields;  // by field number
};

constexpr uint32_t kMostSlots = 64;

// Returns the shape of a type. The table is thread-local, so that no lock is taken.
const Shape& ShapeOf(const Descriptor& type) {
  thread_local absl::node_hash_map<const Descriptor*, Shape> known;
  const auto [it, is_new] = known.try_emplace(&type);
  Shape& shape = it->second;
  if (!is_new) return shape;
  const auto oneofs = static_cast<uint32_t>(type.real_oneof_decl_count());
  SORTITION_CHECK(oneofs + static_cast<uint32_t>(type.field_count()) <= kMostSlots);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto number = static_cast<size_t>(field.number());
    if (shape.fields.size() <= number) shape.fields.resize(number + 1);
    const auto* const oneof = field.real_containing_oneof();
    const int slot = oneof != nullptr ? oneof->index() : static_cast<int>(oneofs) + i;
    const Shape* const below = field.message_type() == nullptr ? nullptr : &ShapeOf(*field.message_type());
    shape.fields[number] = {&field, static_cast<uint32_t>(slot), below};
  }
  return shape;
}

// Finds the fields of one encoded message that are set twice.
class TwiceFinder {
 public:
  // `rows`: continues after elements of this field, which may be null.
  explicit TwiceFinder(const FieldDescriptor* rows) : rows_(rows) {}

  // Returns false after the first field beside the rows.
  bool Search(CodedInputStream* in, const Shape& shape) {
    uint64_t seen = 0;
    // The field of a slot that was seen, or the number of its elements.
    std::array<const FieldDescriptor*, kMostSlots> first;
    std::array<uint32_t, kMostSlots> counts;
    while (const uint32_t tag = in->ReadTag()) {
      const auto number = static_cast<size_t>(WireFormatLite::GetTagFieldNumber(tag));
      const Shape::Field* const known = number < shape.fields.size() ? &shape.fields[number] : nullptr;
      const FieldDescriptor* const field = known == nullptr ? nullptr : known->field;
      // A field in the wrong wire form is unknown to protobuf, and refused as such.
      if (field == nullptr || !HasForm(*field, WireFormatLite::GetTagWireType(tag))) {
        if (!WireFormatLite::SkipField(in, tag)) return true;
        continue;
      }
      const uint64_t bit = uint64_t{1} << known->slot;
      const bool is_first = (seen & bit) == 0;
      seen |= bit;
      if (field->is_repeated()) {
        counts[known->slot] = is_first ? 1 : counts[known->slot] + 1;
      } else if (is_first) {
        first[known->slot] = field;
      } else {
        Found(*first[known->slot], *field);
        return false;
      }
      if (known->below == nullptr) {
        if (!WireFormatLite::SkipField(in, tag)) return true;
        continue;
      }
      const CodedInputStream::Limit limit = in->ReadLengthAndPushLimit();
      path_.push_back({field, field->is_repeated() ? counts[known->slot] - 1 : 0});
      if (!Search(in, *known->below)) {
        if (field != rows_) return false;
        in->Skip(in->BytesUntilLimit());
      }
      path_.pop_back();
      in->PopLimit(limit);
    }
    return true;
  }

  std::vector<SetTwice>& found() { return found_; }

 private:
  static bool HasForm(const FieldDescriptor& field, WireFormatLite::WireType wire_type) {
    if (wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED && field.is_packable()) return true;
    return wire_type == WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
  }

  void Found(const FieldDescriptor& first, const FieldDescriptor& second) {
    SetTwice& twice = found_.emplace_back();
    std::string path;
    for (const auto& [field, index] : path_) {
      absl::StrAppend(&path, field->name());
      if (field->is_repeated()) absl::StrAppend(&path, "[", index, "]");
      absl::StrAppend(&path, ".");
      if (field == rows_) {
        twice.row = index;
        twice.is_task =
            second.containing_type() == v1::StepRow::descriptor() && second.real_containing_oneof() != nullptr;
      }
    }
    twice.refusal = {Reason::kContradiction, absl::StrCat(path, second.name()), "",
                     &first == &second ? "is set twice" : absl::StrCat(first.name(), " is set, too")};
  }

  const FieldDescriptor* const rows_;
  absl::InlinedVector<std::pair<const FieldDescriptor*, uint32_t>, 8> path_;
  std::vector<SetTwice> found_;
};

}  // namespace

bool HasAtMostParts(absl::string_view encoded, const Descriptor& type, uint32_t most) {
  if (encoded.size() / kLeastBytes <= most) return true;
  CodedInputStream in = StreamOver(encoded);
  return Count(&in, type, &most);
}

std::optional<SetTwice> FindSetTwice(absl::string_view encoded, const Descriptor& type) {
  CodedInputStream in = StreamOver(encoded);
  TwiceFinder finder(nullptr);
  if (finder.Search(&in, ShapeOf(type))) return std::nullopt;
  return std::move(finder.found().front());
}

std::vector<SetTwice> FindSetTwiceInStream(absl::string_view encoded) {
  CodedInputStream in = StreamOver(encoded);
  TwiceFinder finder(v1::Step::descriptor()->FindFieldByNumber(v1::Step::kRowsFieldNumber));
  finder.Search(&in, ShapeOf(*v1::StreamRequest::descriptor()));
  return std::move(finder.found());
}

}  // namespace sortition::service
