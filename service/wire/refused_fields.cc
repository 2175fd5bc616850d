// The labels, from the contract's descriptors.
#include "service/wire/refused_fields.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "sortition/v1/parameters.pb.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {
namespace {

// Longer paths are cut: no field of the contract lies so deep.
constexpr size_t kMostPathBytes = 512;

struct Fields {
  std::vector<std::string> labels;
  absl::flat_hash_map<std::string_view, size_t> places;
  size_t other = 0;
  size_t none = 0;

  Fields() {
    for (const google::protobuf::Descriptor* message :
         {v1::SamplingParameters::descriptor(), v1::OpenSequence::descriptor(), v1::Step::descriptor(),
          v1::StepRow::descriptor(), v1::SampleRequest::descriptor(), v1::SampleRow::descriptor()}) {
      for (int i = 0; i < message->field_count(); ++i) labels.emplace_back(message->field(i)->name());
    }
    std::sort(labels.begin(), labels.end());
    labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
    other = labels.size();
    none = other + 1;
    labels.emplace_back("other");
    labels.emplace_back("none");
    // The keys refer to the labels, which do not move afterwards.
    for (size_t i = 0; i < other; ++i) places.emplace(labels[i], i);
  }
};

const Fields& AllFields() {
  static const Fields& fields = *new Fields;
  return fields;
}

bool IsOfName(char c) {
  return absl::ascii_islower(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
         c == '_';
}

}  // namespace

std::span<const std::string> RefusedFields() { return AllFields().labels; }

size_t FindRefusedField(std::string_view path) {
  const Fields& fields = AllFields();
  if (path.empty()) return fields.none;
  path = path.substr(0, kMostPathBytes);
  size_t found = fields.other;
  while (!path.empty()) {
    const auto end = std::find_if_not(path.begin(), path.end(), IsOfName);
    const auto length = static_cast<size_t>(end - path.begin());
    const auto place = fields.places.find(path.substr(0, length));
    if (place != fields.places.end()) found = place->second;
    path.remove_prefix(std::min(length + 1, path.size()));
  }
  return found;
}

}  // namespace sortition::service
