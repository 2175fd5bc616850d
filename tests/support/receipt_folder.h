// A folder with a key for receipts, and the receipts that are written to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "service/followed_files.h"
#include "service/receipt/receipt_key.h"

namespace sortition::testing {

// Removed with its files at the end.
class ReceiptFolder {
 public:
  ReceiptFolder() {
    std::string path = ::testing::TempDir() + "/receiptsXXXXXX";
    path_ = ::mkdtemp(path.data());
    WriteKey();
  }
  ~ReceiptFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string key_file() const { return path_ + "/key.pem"; }
  // Writes a new key over the file of the old one.
  void WriteKey() {
    EXPECT_TRUE(service::WriteNewKey(key_file() + ".new").ok());
    std::filesystem::rename(key_file() + ".new", key_file());
  }
  service::ReceiptPublicKey public_key() const {
    return (*service::ReceiptKey::OfPem(*service::ReadRegularFile(key_file())))->public_key();
  }

  // Returns the files of receipts by their numbers, as bytes.
  std::vector<std::string> Files() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".bin") paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
    std::vector<std::string> files;
    for (const auto& path : paths) {
      std::ostringstream bytes;
      bytes << std::ifstream(path).rdbuf();
      files.push_back(bytes.str());
    }
    return files;
  }

 private:
  std::string path_;
};

}  // namespace sortition::testing
