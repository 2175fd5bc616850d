// The Merkle tree of receipts against published roots, and the JSON of records.
#include "service/receipt/receipt_tree.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "client/receipts/receipt_check.h"
#include "service/receipt/receipt_json.h"

namespace sortition::service::receipt_tree_test {
namespace {

// Roots of the first 1 to 8 of these leaves, as the tests of Certificate Transparency (RFC 6962) have them.
TEST(ReceiptTree, RootsArePublishedOnes) {
  const char* const leaves[] = {
      "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"};
  const char* const roots[] = {"6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
                               "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
                               "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
                               "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
                               "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
                               "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
                               "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
                               "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"};
  ReceiptTree tree;
  for (size_t i = 0; i < std::size(leaves); ++i) {
    tree.Add(absl::HexStringToBytes(leaves[i]));
    EXPECT_EQ(client::Hex(tree.Root()), roots[i]) << i + 1;
    EXPECT_TRUE(tree.Path().empty()) << "no leaf was to be shown";
  }
}

std::vector<size_t> PathLengths(size_t shown, size_t leaves) {
  ReceiptTree tree;
  std::vector<size_t> lengths;
  for (size_t i = 0; i < leaves; ++i) {
    tree.Add(std::string(i, 'x'), i == shown);
    lengths.push_back(tree.Path().size());
  }
  return lengths;
}

// A leaf's path is that of each later size of the tree.
TEST(ReceiptTree, PathGrowsWithTheTree) {
  EXPECT_EQ(PathLengths(0, 9), (std::vector<size_t>{0, 1, 2, 2, 3, 3, 3, 3, 4}));
  EXPECT_EQ(PathLengths(4, 9), (std::vector<size_t>{0, 0, 0, 0, 1, 2, 3, 3, 4}));
}

ReceiptOpening Named(std::string request_id) {
  ReceiptOpening opening;
  opening.request_id = std::move(request_id);
  return opening;
}

TEST(ReceiptJson, TextIsEscapedAsRfc8785Says) {
  const auto json =
      ToJson(ReceiptRecord::kOpening, EncodeBody(Named("a\"b\\c\n\t\x01\x1f\x7f/\xc3\xa9\xf0\x9f\x98\x80")));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_NE(json->find("\"request_id\":\"a\\\"b\\\\c\\n\\t\\u0001\\u001f\x7f/\xc3\xa9\xf0\x9f\x98\x80\""),
            std::string::npos)
      << *json;
}

TEST(ReceiptJson, TextThatIsNotUtf8IsRefused) {
  for (const char* const text : {"\xff", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xe2\x82",
                                 "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\x80"}) {
    const auto json = ToJson(ReceiptRecord::kOpening, EncodeBody(Named(text)));
    EXPECT_EQ(json.status().message(), "a request_id that is not UTF-8") << absl::CHexEscape(text);
  }
}

TEST(ReceiptJson, OtherBytesAreNoRecord) {
  EXPECT_EQ(ToJson(ReceiptRecord::kOpening, "x").status().message(), "an opening with other fields");
  EXPECT_EQ(ToJson(ReceiptRecord::kReceipt, "x").status().message(), "a receipt with other fields");
  EXPECT_EQ(ToJson(ReceiptRecord::kSignature, "x").status().message(), "a signature with other fields");
  EXPECT_EQ(ToJson(static_cast<ReceiptRecord>(9), "x").status().message(), "a record of type 9");
}

}  // namespace
}  // namespace sortition::service::receipt_tree_test
