// Column widths and padding; names of enum values.
#include "client/cli/table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "kernels/check.h"

namespace sortition::cli {

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.empty() ? 0 : rows[0].size());
  for (const auto& row : rows) {
    SORTITION_CHECK(row.size() == widths.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string ToWord(const google::protobuf::EnumDescriptor& type, int value) {
  const google::protobuf::EnumValueDescriptor* const named = type.FindValueByNumber(value);
  if (value == 0 || named == nullptr) return "";
  // Every enum has a value 0, PREFIX_UNSPECIFIED.
  absl::string_view prefix = type.FindValueByNumber(0)->name();
  absl::ConsumeSuffix(&prefix, "UNSPECIFIED");
  return absl::StrReplaceAll(absl::AsciiStrToLower(absl::StripPrefix(named->name(), prefix)), {{"_", "-"}});
}

}  // namespace sortition::cli
