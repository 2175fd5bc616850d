// Row files: formats that are taken, and the messages of refusals.
#include "client/receipts/row_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sortition::client::row_file_test {
namespace {

using ::testing::HasSubstr;

std::string Npy(const std::string& dictionary, const std::string& data, char version = 1) {
  std::string bytes = std::string("\x93NUMPY") + version + '\0' + static_cast<char>(dictionary.size());
  bytes.append(version == 1 ? 1 : 3, '\0');
  return bytes + dictionary + data;
}

std::string Dictionary(const std::string& type, const std::string& shape, const std::string& order = "False") {
  return absl::StrCat("{'descr': '", type, "', 'fortran_order': ", order, ", 'shape': ", shape, ", }");
}

void ExpectRefusal(const std::string& bytes, std::optional<v1::DType> dtype, std::optional<uint32_t> vocabulary,
                   const std::string& reason) {
  const auto row = ParseRow(bytes, dtype, vocabulary);
  ASSERT_FALSE(row.ok()) << reason;
  EXPECT_EQ(row.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(row.status().message()), HasSubstr(reason));
}

TEST(RowFileTest, RawElementsAreTakenAsTheyAre) {
  const auto row = ParseRow("abcdefgh", v1::DTYPE_BF16, 4);
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->dtype, v1::DTYPE_BF16);
  EXPECT_EQ(row->vocabulary, 4);
  EXPECT_EQ(row->bytes, "abcdefgh");
}

TEST(RowFileTest, RawElementsNeedATypeAndWholeElements) {
  ExpectRefusal("abcd", std::nullopt, std::nullopt, "--dtype");
  ExpectRefusal("", v1::DTYPE_F32, std::nullopt, "0 bytes are no row");
  ExpectRefusal("abcde", v1::DTYPE_F32, std::nullopt, "5 bytes are no row");
  ExpectRefusal("abcd", v1::DTYPE_F16, 3, "the row has 2 elements, --vocabulary says 3");
}

TEST(RowFileTest, ArraysKnowTheirTypeAndWidth) {
  for (const char version : {1, 2, 3}) {
    const auto row = ParseRow(Npy(Dictionary("<f4", "(2,)"), "abcdefgh", version), std::nullopt, std::nullopt);
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(row->dtype, v1::DTYPE_F32);
    EXPECT_EQ(row->vocabulary, 2);
    EXPECT_EQ(row->bytes, "abcdefgh");
  }
  EXPECT_TRUE(ParseRow(Npy(Dictionary("<f2", "(1, 4)"), "abcdefgh"), v1::DTYPE_F16, 4).ok());
  EXPECT_TRUE(ParseRow(Npy(Dictionary("<u2", "(4,)"), "abcdefgh"), v1::DTYPE_BF16, std::nullopt).ok());
}

TEST(RowFileTest, ArrayThatIsNoRowIsRefused) {
  const std::string data = "abcdefgh";
  ExpectRefusal(Npy(Dictionary("<f8", "(1,)"), data), std::nullopt, std::nullopt, "type <f8");
  ExpectRefusal(Npy(Dictionary(">f4", "(2,)"), data), std::nullopt, std::nullopt, "type >f4");
  ExpectRefusal(Npy(Dictionary("<u2", "(4,)"), data), std::nullopt, std::nullopt, "--dtype=bf16");
  ExpectRefusal(Npy(Dictionary("<f4", "(2,)"), data), v1::DTYPE_F16, std::nullopt, "not of the --dtype");
  ExpectRefusal(Npy(Dictionary("<f4", "(2, 1)"), data), std::nullopt, std::nullopt, "one row");
  ExpectRefusal(Npy(Dictionary("<f4", "(1, 2)", "True"), data), std::nullopt, std::nullopt, "fortran_order");
  EXPECT_TRUE(ParseRow(Npy(Dictionary("<f4", "(2,)", "True"), data), std::nullopt, std::nullopt).ok());
  ExpectRefusal(Npy(Dictionary("<f4", "()"), data), std::nullopt, std::nullopt, "one row");
  ExpectRefusal(Npy(Dictionary("<f4", "(0,)"), ""), std::nullopt, std::nullopt, "one row");
  ExpectRefusal(Npy(Dictionary("<f4", "(3,)"), data), std::nullopt, std::nullopt, "needs 12 bytes, the file has 8");
  ExpectRefusal(Npy(Dictionary("<f4", "(99999999999,)"), data), std::nullopt, std::nullopt, "out of range");
}

TEST(RowFileTest, MatrixInFortranOrderIsRefused) {
  const std::string path = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_matrix.npy");
  for (const bool is_fortran : {false, true}) {
    std::ofstream(path, std::ios::binary)
        << Npy(Dictionary("<f4", "(2, 2)", is_fortran ? "True" : "False"), "abcdefghijklmnop");
    const auto matrix = RowMatrix::Open(path, std::nullopt, 2);
    ASSERT_EQ(matrix.ok(), !is_fortran);
    if (is_fortran) {
      EXPECT_THAT(std::string(matrix.status().message()), HasSubstr("fortran_order must be False"));
    }
  }
  std::remove(path.c_str());
}

TEST(RowFileTest, BrokenHeadersAreRefused) {
  const std::string good = Npy(Dictionary("<f4", "(2,)"), "abcdefgh");
  const size_t header = good.size() - 8;
  for (size_t size = 6; size < header; ++size)
    EXPECT_FALSE(ParseRow(good.substr(0, size), std::nullopt, std::nullopt).ok()) << size;
  ExpectRefusal(Npy(Dictionary("<f4", "(2,)"), "", 9), std::nullopt, std::nullopt, "version 9");
  ExpectRefusal(Npy("{}", ""), std::nullopt, std::nullopt, "no 'descr'");
  ExpectRefusal(Npy("{'descr': '<f4', 'shape': (2,)}", ""), std::nullopt, std::nullopt, "no 'fortran_order'");
  ExpectRefusal(Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", ""), std::nullopt, std::nullopt,
                "records");
  ExpectRefusal(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': 2}", ""), std::nullopt, std::nullopt,
                "no tuple");
  ExpectRefusal(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, ", ""), std::nullopt, std::nullopt,
                "no tuple");
  ExpectRefusal(Npy("{'descr': '<f4', 'fortran_order': False, 'shape':", ""), std::nullopt, std::nullopt, "no tuple");
}

}  // namespace
}  // namespace sortition::client::row_file_test
