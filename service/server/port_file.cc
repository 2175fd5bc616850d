// The port file.
#include "service/server/port_file.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace sortition::server {

absl::Status WritePortFile(const std::string& path, uint16_t port) {
  const std::string unfinished = absl::StrCat(path, ".new");
  std::ofstream file(unfinished, std::ios::trunc);
  file << port << "\n";
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace sortition::server
