// Column widths and padding.
#include "client/cli/table.h"

#include <algorithm>
#include <cstddef>

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

}  // namespace sortition::cli
