// A walk over the wire format, field by field.
#include "service/wire/wire_scan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"
#include "kernels/check.h"
#include "service/limits.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// protobuf refuses a message with more messages within each other. Deeper parts never become memory.
constexpr int kMostNesting = 100;

// Parts that an unknown field counts for: it is kept apart, searched for the refusal, and dropped where it is ignored.
constexpr uint32_t kPartsOfUnknown = 8;

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
    uint32_t parts = 0;  // that an element counts for; of numbers, the list
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

// Returns the parts that a message counts for beyond one: it takes longer to make and to free than a small one.
uint32_t PartsOf(const Descriptor& type) {
  constexpr size_t kPartBytes = 160;  // a row has fewer
  const auto* const empty = google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  return static_cast<uint32_t>(empty->SpaceUsedLong() / kPartBytes);
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
    its.parts = field.is_packable() || its.form == WireFormatLite::WIRETYPE_LENGTH_DELIMITED ? 1 : 0;
    if (field.message_type() != nullptr) its.parts += PartsOf(*field.message_type());
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
  uint64_t left() const { return static_cast<uint64_t>(end_ - at_); }

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
    if (size > left()) {
      Fail();
      return *this;
    }
    Bytes taken = *this;
    at_ += size;
    taken.end_ = at_;
    return taken;
  }
  Bytes TakeDelimited() { return Take(Varint(5)); }

  // Returns the number of varints up to the end.
  uint32_t CountVarints() const {
    return static_cast<uint32_t>(std::count_if(at_, end_, [](uint8_t byte) { return byte < 0x80; }));
  }

  // Skips the value of a field. A group is an error.
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
        Fail();
    }
  }

  void Fail() {
    at_ = end_;
    failed_ = true;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  bool failed_ = false;
};

// The fields that a scan counts.
struct Counted {
  const FieldDescriptor* rows = nullptr;
  bool goes_on_after_rows = false;        // a row that sets a field twice does not refuse the others
  const FieldDescriptor* open = nullptr;  // has the history
};

const FieldDescriptor* FieldOf(const Descriptor& type, int number) { return type.FindFieldByNumber(number); }

// Scans one encoded message.
class Scanner {
 public:
  Scanner(const Counted& counted, uint32_t most_rows) : counted_(counted), most_rows_(most_rows) {}

  WireScan Scan(absl::string_view encoded, const Shape& shape) {
    scan_.may_have_unknown = false;
    Bytes bytes(encoded);
    Search(&bytes, shape, nullptr, 0);
    if (bytes.failed() && scan_.end == WireScan::End::kWhole) scan_.end = WireScan::End::kMalformed;
    if (scan_.end != WireScan::End::kWhole) scan_.may_have_unknown = true;
    return std::move(scan_);
  }

 private:
  // The message that is being searched, below others.
  struct Place {
    const Place* above;
    const FieldDescriptor* field;
    uint32_t index;  // in a repeated field
  };

  // Searches to the end of `*bytes`, which fails if the scan has ended before. `depth`: messages around this one.
  void Search(Bytes* bytes, const Shape& shape, const Place* place, int depth) {
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
      const bool is_unknown = known == nullptr || (form != known->form && !is_packed);
      if (is_unknown) {
        // The fields of a group would not be counted.
        if (form == WireFormatLite::WIRETYPE_START_GROUP) return End(WireScan::End::kGroup, bytes);
        scan_.may_have_unknown = true;
        if (!Count(kPartsOfUnknown, bytes)) return;
        bytes->Skip(tag);
        continue;
      }
      const uint64_t bit = uint64_t{1} << known->slot;
      const bool is_first = (seen & bit) == 0;
      seen |= bit;
      if ((is_first || !known->is_packable) && !Count(known->parts, bytes)) return;
      if (known->is_repeated) {
        counts[known->slot] = is_first ? 1 : counts[known->slot] + 1;
      } else if (is_first) {
        first[known->slot] = known->field;
      } else {
        Found(*first[known->slot], *known->field, place);
      }
      if (known->below != nullptr) {
        if (known->field == counted_.rows && ++scan_.rows > most_rows_) return End(WireScan::End::kTooManyRows, bytes);
        Bytes below = bytes->TakeDelimited();
        if (depth == kMostNesting) continue;
        const Place its{place, known->field, known->is_repeated ? counts[known->slot] - 1 : 0};
        Search(&below, *known->below, &its, depth + 1);
        if (below.failed()) bytes->Fail();
      } else if (known->is_enum) {
        SearchValues(bytes, *known, is_packed);
      } else if (is_packed && IsHistory(place, *known->field)) {
        scan_.history_tokens += bytes->TakeDelimited().CountVarints();
      } else {
        bytes->Skip(tag);
      }
    }
  }

  // Returns false, and ends the scan, if there are too many.
  bool Count(uint32_t parts, Bytes* bytes) {
    scan_.parts += parts;
    if (scan_.parts <= kMaxMessageParts) return true;
    End(WireScan::End::kTooManyParts, bytes);
    return false;
  }

  void End(WireScan::End end, Bytes* bytes) {
    scan_.end = end;
    bytes->Fail();
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

  // Returns true if the list is the tokens of the open's history. The message around it is a fork's child's, too.
  bool IsHistory(const Place* place, const FieldDescriptor& list) const {
    static const FieldDescriptor* const tokens = FieldOf(*v1::History::descriptor(), v1::History::kTokensFieldNumber);
    return &list == tokens && place->above != nullptr && place->above->field == counted_.open;
  }

  // Notes the first field of a row, and the first one outside of rows.
  void Found(const FieldDescriptor& first, const FieldDescriptor& second, const Place* place) {
    std::optional<uint32_t> row;
    for (const Place* at = place; at != nullptr; at = at->above) {
      if (at->field == counted_.rows && counted_.goes_on_after_rows) row = at->index;
    }
    const bool has_one = row ? !scan_.set_twice.empty() && scan_.set_twice.back().row == row : found_outside_;
    if (has_one) return;
    found_outside_ |= !row;
    SetTwice& twice = scan_.set_twice.emplace_back();
    twice.row = row;
    twice.is_task =
        row && second.containing_type() == v1::StepRow::descriptor() && second.real_containing_oneof() != nullptr;
    std::string path(second.name());
    for (; place != nullptr; place = place->above) {
      const std::string index = place->field->is_repeated() ? absl::StrCat("[", place->index, "]") : "";
      path = absl::StrCat(place->field->name(), index, ".", path);
    }
    twice.refusal = {Reason::kContradiction, std::move(path), "",
                     &first == &second ? "is set twice" : absl::StrCat(first.name(), " is set, too")};
  }

  const Counted counted_;
  const uint32_t most_rows_;
  bool found_outside_ = false;
  WireScan scan_;
};

}  // namespace

std::optional<SetTwice> FindSetTwice(absl::string_view encoded, const Descriptor& type) {
  WireScan scan = Scanner({}, kMaxMessageParts).Scan(encoded, ShapeOf(type));
  if (scan.set_twice.empty()) return std::nullopt;
  return std::move(scan.set_twice.front());
}

WireScan ScanStream(absl::string_view encoded, uint32_t most_rows) {
  static const Counted counted = {
      .rows = FieldOf(*v1::Step::descriptor(), v1::Step::kRowsFieldNumber),
      .goes_on_after_rows = true,
      .open = FieldOf(*v1::StreamRequest::descriptor(), v1::StreamRequest::kOpenFieldNumber)};
  return Scanner(counted, most_rows).Scan(encoded, ShapeOf(*v1::StreamRequest::descriptor()));
}

WireScan ScanSample(absl::string_view encoded, uint32_t most_rows) {
  static const Counted counted = {.rows =
                                      FieldOf(*v1::SampleRequest::descriptor(), v1::SampleRequest::kRowsFieldNumber)};
  return Scanner(counted, most_rows).Scan(encoded, ShapeOf(*v1::SampleRequest::descriptor()));
}

bool HasAtMostBytesBeside(int field, absl::string_view encoded, uint64_t most) {
  Bytes bytes(encoded);
  uint64_t beside = 0;
  while (!bytes.AtEnd() && beside <= most) {
    const uint64_t before = bytes.left();
    const uint32_t tag = bytes.Tag();
    if (tag == WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
      bytes.TakeDelimited();
    } else {
      bytes.Skip(tag);
      beside += before - bytes.left();
    }
  }
  return beside <= most;
}

std::optional<Refusal> WhyNotRead(const WireScan& scan, absl::string_view rows, Bound most_rows,
                                  absl::string_view type) {
  switch (scan.end) {
    case WireScan::End::kWhole:
      return std::nullopt;
    case WireScan::End::kMalformed:
      return Refusal{Reason::kMalformedMessage, "", "", absl::StrCat("not a sortition.v1.", type)};
    case WireScan::End::kGroup:
      return Refusal{Reason::kMalformedMessage, "", "", "a wire type that proto3 does not have"};
    case WireScan::End::kTooManyParts:
      return Refusal{Reason::kTooMany, "message", Bounds::max_message_parts().Text(),
                     "has more messages, strings and unknown fields within it"};
    case WireScan::End::kTooManyRows:
      break;
  }
  return Refusal{Reason::kTooMany, std::string(rows), most_rows.Text(), "has more rows"};
}

}  // namespace sortition::service
