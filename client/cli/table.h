// Output of sortitionctl for people: tables whose columns are as wide as their widest cell, and words.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/generated_enum_reflection.h"

namespace sortition::cli {

// The first row is the header. Rows have equally many cells. The last column is not padded.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// Returns the value's name without the prefix that all values of its enum share, as a word: "self-test" for
// STATE_SELF_TEST.
// Empty for the value 0 and for one that this build does not know.
std::string ToWord(const google::protobuf::EnumDescriptor& type, int value);
template <typename Enum>
std::string ToWord(Enum value) {
  return ToWord(*google::protobuf::GetEnumDescriptor<Enum>(), value);
}

}  // namespace sortition::cli
