// A table for people: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace sortition::cli {

// The first row is the header. Rows have equally many cells. The last column is not padded.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace sortition::cli
