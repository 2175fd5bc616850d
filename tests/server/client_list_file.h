// A list of clients in a file, for one test.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/net/authorization.h"
#include "tests/server/server_process.h"

namespace sortition::server {

// How a list names a bearer token.
inline std::string Sha256(const std::string& token) {
  const TokenDigest digest = DigestOfToken(token);
  return absl::StrCat("sha256:", absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()}));
}

// The file is gone with it.
class ClientListFile {
 public:
  explicit ClientListFile(const std::string& text) : path_(TestPath("clients")) { WriteFile(path_, text); }
  ~ClientListFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  // Replaces the file as an operator should and Kubernetes does: another file takes the name.
  void Replace(const std::string& text) {
    WriteFile(path_ + ".new", text);
    SORTITION_CHECK(rename((path_ + ".new").c_str(), path_.c_str()) == 0);
  }

 private:
  const std::string path_;
};

}  // namespace sortition::server
