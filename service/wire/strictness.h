// Finds data that protobuf would drop in silence: unknown fields and unknown enum values, anywhere in a message, and
// known fields in another wire form. Only the encoding shows fields that are set twice (wire_scan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns the first unknown field (UNKNOWN_FIELD), field in another wire form (MALFORMED_MESSAGE) or unknown enum value
// (UNKNOWN_ENUM_VALUE) in `message` or in any message below it. `path` is the message's own, "" for a whole
// StreamRequest. Thread-safe.
std::optional<Refusal> FindUnknown(const google::protobuf::Message& message, absl::string_view path);

// As FindUnknown for a message of a stream, but leaves the rows of a step to StepMessage, so that a bad row fails
// alone. Rows are judged here if the step depends on them: if a row's task is unknown or unreadable, so that it may
// take any number of tensor rows, and a later row does not give its place. Thread-safe.
std::optional<Refusal> FindUnknownBesideRows(const v1::StreamRequest& message);

// Returns the last row that has no tensor_row: its place follows from the rows before it. None if every row gives its
// place. O(rows). Thread-safe.
std::optional<uint32_t> FindLastPlaced(const v1::Step& step);

// The unknown fields that one stream ignores (UNKNOWN_FIELDS_IGNORE). Not thread-safe.
class IgnoredFields {
 public:
  // Removes the unknown fields of `*message` and of all messages below it. Keeps possible members of an unset oneof,
  // known fields in another wire form, and fields beyond kMaxIgnoredFields paths: FindUnknown refuses them. Returns the
  // paths that occur for the first time, without indexes: "step.rows[].mask.#7".
  std::vector<std::string> Drop(google::protobuf::Message* message);

 private:
  // Messages of one path.
  struct List {
    std::string path;
    absl::flat_hash_map<int, bool> ignored = {};  // by the field's number
  };

  // Returns true if the messages of the list may have a field of this number, which is no known one, ignored.
  bool Ignores(int number, List* list, std::vector<std::string>* first);
  // `fields`: those of the message that lead to others.
  void DropFrom(google::protobuf::Message* message, const std::vector<const google::protobuf::FieldDescriptor*>& fields,
                List* list, std::vector<std::string>* first);

  absl::flat_hash_set<std::string> paths_;
};

}  // namespace sortition::service
