// A walk over the wire format, field by field.
#include "service/wire/wire_scan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

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

// protobuf refuses a message with more messages within each other. Deeper parts never become memory.
constexpr int kMostNesting = 100;

// False once `*left` does not suffice. `depth`: messages around this one.
bool Count(CodedInputStream* in, const Descriptor& type, int depth, uint32_t* left) {
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
    if (depth == kMostNesting) {
      in->Skip(in->BytesUntilLimit());
    } else if (!Count(in, *field->message_type(), depth + 1, left)) {
      return false;
    }
    in->PopLimit(limit);
  }
  return true;
}

CodedInputStream StreamOver(absl::string_view encoded) {
  // protobuf reads no message that is longer.
  const auto size = static_cast<int>(std::min<size_t>(encoded.size(), std::numeric_limits<int>::max()));
  return CodedInputStream(reinterpret_cast<const uint8_t*>(encoded.data()), size);
}

// Fields around the tokens of an open's history, and their own.
constexpr std::array<int, 3> kHistoryTokens = {v1::StreamRequest::kOpenFieldNumber,
                                               v1::OpenSequence::kHistoryFieldNumber, v1::History::kTokensFieldNumber};

// Counts below the message that `depth` fields of kHistoryTokens are around.
uint32_t CountTokens(CodedInputStream* in, size_t depth) {
  uint32_t tokens = 0;
  while (const uint32_t tag = in->ReadTag()) {
    if (tag != WireFormatLite::MakeTag(kHistoryTokens[depth], WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
      if (!WireFormatLite::SkipField(in, tag)) break;
      continue;
    }
    const CodedInputStream::Limit limit = in->ReadLengthAndPushLimit();
    if (depth + 1 < kHistoryTokens.size()) {
      tokens += CountTokens(in, depth + 1);
    } else {
      const void* run;
      int size;
      if (!in->GetDirectBufferPointer(&run, &size)) break;
      size = std::min(size, in->BytesUntilLimit());
      const auto* const bytes = static_cast<const uint8_t*>(run);
      tokens += static_cast<uint32_t>(std::count_if(bytes, bytes + size, [](uint8_t byte) { return byte < 0x80; }));
      in->Skip(size);
    }
    in->PopLimit(limit);
  }
  return tokens;
}

// A message type as the scan needs it.
struct Shape {
  struct Field {
    const FieldDescriptor* field = nullptr;  // null: unknown
    const Shape* below = nullptr;            // a message's
    // Number that a field shares with the other members of its oneof. A repeated field has one to count its elements.
    uint32_t slot = 0;
    WireFormatLite::WireType form = WireFormatLite::WIRETYPE_VARINT;  // one element's
    bool is_repeated = false;
    bool is_packable = false;
    bool is_enum = false;
    uint64_t known_values = 0;  // an enum's: a bit for each value below 64
  };
  std::vector<Field> fields;  // by field number

  const Field* Find(uint32_t number) const {
    return number < fields.size() && fields[number].field != nullptr ? &fields[number] : nullptr;
  }
};

constexpr uint32_t kMostSlots = 64;

uint64_t KnownValues(const google::protobuf::EnumDescriptor& type) {
  uint64_t values = 0;
  for (int i = 0; i < type.value_count(); ++i) {
    const int number = type.value(i)->number();
    if (number >= 0 && number < 64) values |= uint64_t{1} << number;
  }
  return values;
}

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
    Shape::Field& its = shape.fields[number];
    its.field = &field;
    if (field.message_type() != nullptr) its.below = &ShapeOf(*field.message_type());
    const auto* const oneof = field.real_containing_oneof();
    its.slot = oneof != nullptr ? static_cast<uint32_t>(oneof->index()) : oneofs + static_cast<uint32_t>(i);
    its.form = WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    its.is_repeated = field.is_repeated();
    its.is_packable = field.is_packable();
    its.is_enum = field.enum_type() != nullptr;
    if (its.is_enum) its.known_values = KnownValues(*field.enum_type());
  }
  return shape;
}

// Reads an encoding forward. After an error, which no encoded message has, it is at its end and has failed.
class Bytes {
 public:
  explicit Bytes(absl::string_view encoded)
      : at_(reinterpret_cast<const uint8_t*>(encoded.data())), end_(at_ + encoded.size()) {}

  bool AtEnd() const { return at_ == end_; }
  bool failed() const { return failed_; }

  // Reads a varint of at most `most` bytes, which are at most 10. Its upper bits are lost, as protobuf loses them.
  uint64_t Varint(int most) {
    if (at_ != end_ && *at_ < 0x80) return *at_++;
    uint64_t value = 0;
    for (int i = 0; i < most && at_ != end_; ++i) {
      const uint8_t byte = *at_++;
      value |= uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return value;
    }
    Fail();
    return 0;
  }
  uint32_t Tag() { return static_cast<uint32_t>(Varint(5)); }

  // Takes the next `size` bytes.
  Bytes Take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) {
      Fail();
      return *this;
    }
    Bytes taken = *this;
    at_ += size;
    taken.end_ = at_;
    return taken;
  }
  Bytes TakeDelimited() { return Take(Varint(5)); }

  // Skips the value of a field of any form, groups included.
  void Skip(uint32_t tag) {
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_VARINT:
        Varint(10);
        return;
      case WireFormatLite::WIRETYPE_FIXED64:
        Take(8);
        return;
      case WireFormatLite::WIRETYPE_FIXED32:
        Take(4);
        return;
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        TakeDelimited();
        return;
      default:
        SkipGroup(tag);
    }
  }

  void Fail() {
    at_ = end_;
    failed_ = true;
  }

 private:
  void SkipGroup(uint32_t tag) {
    CodedInputStream in(at_, static_cast<int>(end_ - at_));
    if (!WireFormatLite::SkipField(&in, tag)) return Fail();
    at_ += in.CurrentPosition();
  }

  const uint8_t* at_;
  const uint8_t* end_;
  bool failed_ = false;
};

// Scans one encoded message.
class Scanner {
 public:
  // `rows`: continues after elements of this field, which may be null.
  explicit Scanner(const FieldDescriptor* rows) : rows_(rows) { scan_.may_have_unknown = false; }

  void Scan(absl::string_view encoded, const Shape& shape) {
    Bytes bytes(encoded);
    if (!Search(&bytes, shape, nullptr) || bytes.failed()) scan_.may_have_unknown = true;
  }
  StreamScan& scan() { return scan_; }

 private:
  // The message that is being searched, below others.
  struct Place {
    const Place* above;
    const FieldDescriptor* field;
    uint32_t index;  // in a repeated field
  };

  // Returns false after the first field outside of rows that is set twice.
  bool Search(Bytes* bytes, const Shape& shape, const Place* place) {
    uint64_t seen = 0;
    // The field of a slot that was seen, or the number of its elements.
    std::array<const FieldDescriptor*, kMostSlots> first;
    std::array<uint32_t, kMostSlots> counts;
    while (!bytes->AtEnd()) {
      const uint32_t tag = bytes->Tag();
      const Shape::Field* const known = shape.Find(static_cast<uint32_t>(WireFormatLite::GetTagFieldNumber(tag)));
      const WireFormatLite::WireType form = WireFormatLite::GetTagWireType(tag);
      // A field in the wrong wire form is unknown to protobuf, and refused as such.
      const bool is_packed =
          known != nullptr && known->is_packable && form == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
      if (known == nullptr || (form != known->form && !is_packed)) {
        scan_.may_have_unknown = true;
        bytes->Skip(tag);
        continue;
      }
      const uint64_t bit = uint64_t{1} << known->slot;
      const bool is_first = (seen & bit) == 0;
      seen |= bit;
      if (known->is_repeated) {
        counts[known->slot] = is_first ? 1 : counts[known->slot] + 1;
      } else if (is_first) {
        first[known->slot] = known->field;
      } else {
        Found(*first[known->slot], *known->field, place);
        return false;
      }
      if (known->below != nullptr) {
        Bytes below = bytes->TakeDelimited();
        const Place its{place, known->field, known->is_repeated ? counts[known->slot] - 1 : 0};
        if (!Search(&below, *known->below, &its) && known->field != rows_) return false;
        if (below.failed()) bytes->Fail();
      } else if (known->is_enum) {
        SearchValues(bytes, *known, is_packed);
      } else {
        bytes->Skip(tag);
      }
    }
    return true;
  }

  void SearchValues(Bytes* bytes, const Shape::Field& known, bool is_packed) {
    if (!is_packed) return SearchValue(bytes->Varint(10), known);
    Bytes values = bytes->TakeDelimited();
    while (!values.AtEnd()) SearchValue(values.Varint(10), known);
    if (values.failed()) bytes->Fail();
  }
  void SearchValue(uint64_t varint, const Shape::Field& known) {
    const auto value = static_cast<int32_t>(varint);
    const bool is_known = value >= 0 && value < 64 ? ((known.known_values >> value) & 1) != 0
                                                   : known.field->enum_type()->FindValueByNumber(value) != nullptr;
    if (!is_known) scan_.may_have_unknown = true;
  }

  void Found(const FieldDescriptor& first, const FieldDescriptor& second, const Place* place) {
    scan_.may_have_unknown = true;  // the rest of the message is not searched
    SetTwice& twice = scan_.set_twice.emplace_back();
    std::string path(second.name());
    for (; place != nullptr; place = place->above) {
      const std::string index = place->field->is_repeated() ? absl::StrCat("[", place->index, "]") : "";
      path = absl::StrCat(place->field->name(), index, ".", path);
      if (place->field != rows_) continue;
      twice.row = place->index;
      twice.is_task =
          second.containing_type() == v1::StepRow::descriptor() && second.real_containing_oneof() != nullptr;
    }
    twice.refusal = {Reason::kContradiction, std::move(path), "",
                     &first == &second ? "is set twice" : absl::StrCat(first.name(), " is set, too")};
  }

  const FieldDescriptor* const rows_;
  StreamScan scan_;
};

}  // namespace

bool HasAtMostParts(absl::string_view encoded, const Descriptor& type, uint32_t most) {
  if (encoded.size() / kLeastBytes <= most) return true;
  CodedInputStream in = StreamOver(encoded);
  return Count(&in, type, 0, &most);
}

std::optional<SetTwice> FindSetTwice(absl::string_view encoded, const Descriptor& type) {
  Scanner scanner(nullptr);
  scanner.Scan(encoded, ShapeOf(type));
  if (scanner.scan().set_twice.empty()) return std::nullopt;
  return std::move(scanner.scan().set_twice.front());
}

uint32_t CountHistoryTokens(absl::string_view encoded) {
  CodedInputStream in = StreamOver(encoded);
  return CountTokens(&in, 0);
}

StreamScan ScanStream(absl::string_view encoded) {
  static const FieldDescriptor* const rows = v1::Step::descriptor()->FindFieldByNumber(v1::Step::kRowsFieldNumber);
  Scanner scanner(rows);
  scanner.Scan(encoded, ShapeOf(*v1::StreamRequest::descriptor()));
  return std::move(scanner.scan());
}

}  // namespace sortition::service
