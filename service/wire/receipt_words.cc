// Walks messages by protobuf's reflection, so that a parameter that the contract gets is in receipts without more.
#include "service/wire/receipt_words.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "google/protobuf/message.h"
#include "service/wire/parameter_table.h"

namespace sortition::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Leaves out what only asks for answers, and the watermark, whose key is a secret.
bool IsLeftOut(const FieldDescriptor& field) {
  if (field.containing_type() != v1::SamplingParameters::descriptor()) return false;
  return field.number() == v1::SamplingParameters::kWatermarkFieldNumber || FindParameter(field.name())->is_answer;
}

using WordFields = std::vector<const FieldDescriptor*>;

// Returns the fields whose words are added, by ascending number.
WordFields FieldsOf(const google::protobuf::Descriptor& descriptor) {
  WordFields fields;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (!IsLeftOut(*descriptor.field(i))) fields.push_back(descriptor.field(i));
  }
  std::ranges::sort(fields, {}, &FieldDescriptor::number);
  return fields;
}

// Appends what `add` appends, after its size.
template <typename Add>
void AddCounted(std::vector<uint32_t>* words, Add add) {
  const size_t at = words->size();
  words->push_back(0);
  add();
  (*words)[at] = static_cast<uint32_t>(words->size() - at - 1);
}

void AddWords(const Message& message, const WordFields& fields, std::vector<uint32_t>* words);

// Appends the words of a field's element; `index` is used if the field is repeated. `inner`: the fields of its message.
void AddElement(const Message& message, const FieldDescriptor& field, int index, const WordFields& inner,
                std::vector<uint32_t>* words) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      words->push_back(std::bit_cast<uint32_t>(repeated ? reflection.GetRepeatedFloat(message, &field, index)
                                                        : reflection.GetFloat(message, &field)));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      words->push_back(repeated ? reflection.GetRepeatedUInt32(message, &field, index)
                                : reflection.GetUInt32(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      words->push_back(reflection.GetBool(message, &field) ? 1 : 0);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      words->push_back(static_cast<uint32_t>(reflection.GetEnumValue(message, &field)));
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!repeated) return AddWords(reflection.GetMessage(message, &field), inner, words);
      AddCounted(words, [&] { AddWords(reflection.GetRepeatedMessage(message, &field, index), inner, words); });
      break;
    default: {  // strings, which are repeated alone
      const std::string text = reflection.GetRepeatedString(message, &field, index);
      words->push_back(static_cast<uint32_t>(text.size()));
      std::vector<uint32_t> padded((text.size() + 3) / 4);
      std::memcpy(padded.data(), text.data(), text.size());
      words->insert(words->end(), padded.begin(), padded.end());
      break;
    }
  }
}

// A long list costs no memory and no search of fields for each of its messages.
void AddWords(const Message& message, const WordFields& fields, std::vector<uint32_t>* words) {
  const Reflection& reflection = *message.GetReflection();
  for (const FieldDescriptor* const field : fields) {
    const bool repeated = field->is_repeated();
    const int count = repeated ? reflection.FieldSize(message, field) : reflection.HasField(message, field) ? 1 : 0;
    if (count == 0) continue;
    words->push_back(static_cast<uint32_t>(field->number()));
    AddCounted(words, [&] {
      const google::protobuf::Descriptor* const type = field->message_type();
      const WordFields inner = type != nullptr ? FieldsOf(*type) : WordFields();
      for (int i = 0; i < count; ++i) AddElement(message, *field, i, inner, words);
    });
  }
}

using Words = std::span<const uint32_t>;

// Takes a count and that many words off the front.
std::optional<Words> TakeCounted(Words* words) {
  if (words->empty() || words->front() > words->size() - 1) return std::nullopt;
  const Words taken = words->subspan(1, words->front());
  *words = words->subspan(1 + taken.size());
  return taken;
}

// The contract's options have at most three messages within each other: a phase, its parameters, an entry of a list.
constexpr int kMostNesting = 3;

// `depth`: messages around this one. Returns false if it is more than the contract has.
bool ReadInto(Words words, int depth, Message* message);

// Takes one element of a field off the front of `words`; a message that is not repeated takes them all.
bool TakeElement(const FieldDescriptor& field, int depth, Words* words, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const bool repeated = field.is_repeated();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (!repeated) return ReadInto(std::exchange(*words, {}), depth + 1, reflection.MutableMessage(message, &field));
    const std::optional<Words> inner = TakeCounted(words);
    return inner && ReadInto(*inner, depth + 1, reflection.AddMessage(message, &field));
  }
  if (words->empty()) return false;
  const uint32_t word = words->front();
  *words = words->subspan(1);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT: {
      const auto value = std::bit_cast<float>(word);
      repeated ? reflection.AddFloat(message, &field, value) : reflection.SetFloat(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_UINT32:
      repeated ? reflection.AddUInt32(message, &field, word) : reflection.SetUInt32(message, &field, word);
      return true;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection.SetBool(message, &field, word != 0);
      return !repeated && word <= 1;
    case FieldDescriptor::CPPTYPE_ENUM:
      reflection.SetEnumValue(message, &field, static_cast<int>(word));
      return !repeated && field.enum_type()->FindValueByNumber(static_cast<int>(word)) != nullptr;
    case FieldDescriptor::CPPTYPE_STRING: {
      const uint64_t padded = (uint64_t{word} + 3) / 4;
      if (!repeated || padded > words->size()) return false;
      reflection.AddString(message, &field, std::string(reinterpret_cast<const char*>(words->data()), word));
      *words = words->subspan(padded);
      return true;
    }
    default:
      return false;
  }
}

bool ReadInto(Words words, int depth, Message* message) {
  if (depth > kMostNesting) return false;
  while (!words.empty()) {
    const FieldDescriptor* const field =
        message->GetDescriptor()->FindFieldByNumber(static_cast<int>(std::min(words.front(), 1u << 28)));
    words = words.subspan(1);
    std::optional<Words> entry = TakeCounted(&words);
    if (field == nullptr || !entry) return false;
    bool takes_more = !entry->empty() || (!field->is_repeated() && field->message_type() != nullptr);
    for (; takes_more; takes_more = !entry->empty()) {
      if (!TakeElement(*field, depth, &*entry, message)) return false;
      if (!field->is_repeated() && !entry->empty()) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<uint32_t> ReceiptWords(const v1::SamplingParameters& parameters) {
  std::vector<uint32_t> words;
  AddWords(parameters, FieldsOf(*parameters.GetDescriptor()), &words);
  return words;
}

std::optional<v1::SamplingParameters> ParseReceiptWords(std::span<const uint32_t> words) {
  v1::SamplingParameters parameters;
  if (!ReadInto(words, 0, &parameters)) return std::nullopt;
  // Anything else has other words: fields in another order, twice, or left out.
  if (!std::ranges::equal(ReceiptWords(parameters), words)) return std::nullopt;
  return parameters;
}

}  // namespace sortition::service
