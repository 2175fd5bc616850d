// The verifier of sortitionctl against published receipts, right ones and wrong ones. With --write as an argument this
// program writes the file of them instead.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "service/request/receipt_words.h"
#include "tests/verifier/receipt_vectors.h"

namespace sortition::testing {
namespace {

using cli::ReceiptCheck;

constexpr char kPath[] = SORTITION_SOURCE_DIR "/tests/verifier/receipts_vectors.json";

std::vector<std::string> TextsOf(const std::vector<ExpectedProblem>& problems) {
  std::vector<std::string> texts;
  for (const ExpectedProblem& problem : problems) {
    texts.push_back(problem.name + " " + problem.chain + " " + (problem.index ? std::to_string(*problem.index) : "-"));
  }
  return texts;
}

std::vector<std::string> TextsOf(const std::vector<cli::Problem>& problems) {
  std::vector<ExpectedProblem> expected;
  for (const cli::Problem& problem : problems) expected.push_back({problem.name, problem.chain, problem.index});
  return TextsOf(expected);
}

ReceiptCheck CheckOf(const ReceiptVector& vector, size_t piece) {
  ReceiptCheck check({vector.keys, vector.seeds});
  for (size_t begin = 0; begin < vector.records.size(); begin += piece) {
    check.Read(std::string_view(vector.records).substr(begin, piece));
  }
  check.Finish();
  return check;
}

TEST(ReceiptVectors, VerifierFindsWhatTheySay) {
  for (const ReceiptVector& vector : MakeReceiptVectors()) {
    for (const size_t piece : {size_t{1} << 20, size_t{1}, size_t{61}}) {
      const ReceiptCheck check = CheckOf(vector, piece);
      EXPECT_EQ(TextsOf(check.problems()), TextsOf(vector.problems)) << vector.name;
      EXPECT_EQ(check.counts().receipts, vector.receipts) << vector.name;
      EXPECT_EQ(check.counts().signed_receipts, vector.signed_receipts) << vector.name;
      EXPECT_EQ(check.counts().drawn, vector.drawn) << vector.name;
    }
  }
}

TEST(ReceiptVectors, FileIsUpToDate) {
  std::ostringstream text;
  text << std::ifstream(kPath).rdbuf();
  EXPECT_TRUE(text.str() == ReceiptVectorsText()) << "receipts_test --write writes it";
}

// Every changed byte of a signed file is noticed.
TEST(ReceiptVectors, ChangedByteIsNoticed) {
  std::mt19937_64 random(1);
  for (const ReceiptVector& vector : MakeReceiptVectors()) {
    if (!vector.problems.empty() || vector.receipts == 0 || vector.signed_receipts != vector.receipts) continue;
    // A repeated opening that is changed begins a chain without receipts, which says nothing.
    if (vector.name == "opening_again") continue;
    for (int i = 0; i < 200; ++i) {
      ReceiptVector changed = vector;
      changed.records[random() % changed.records.size()] ^= static_cast<char>(1 << random() % 8);
      const ReceiptCheck check = CheckOf(changed, 4096);
      EXPECT_TRUE(!check.problems().empty() || check.counts().signed_receipts < vector.signed_receipts) << vector.name;
    }
  }
}

TEST(ReceiptWords, WordsOfNoParametersAreRefused) {
  using Words = std::vector<uint32_t>;
  EXPECT_TRUE(service::ParametersOf(Words{}));
  for (const Words& words :
       {Words{1}, Words{1, 1}, Words{1, 2, 0, 0}, Words{2, 1, 40, 1, 1, 0}, Words{1, 0}, Words{999, 0}, Words{38, 0},
        Words{18, 3, 1, 1, 9}, Words{9, 2, 1, 0}, Words{1, 1, 0, 1, 1, 0}, Words{36, 1, 5}}) {
    EXPECT_FALSE(service::ParametersOf(words)) << words.size();
  }
}

TEST(SeedOpenings, LinesThatAreNoneAreNamed) {
  const auto seeds = cli::ParseSeeds("# a comment\n\n 42 000102030405060708090A0B0C0D0E0F \r\n");
  ASSERT_TRUE(seeds.ok()) << seeds.status();
  ASSERT_EQ(seeds->size(), 1u);
  EXPECT_EQ(seeds->front().seed, 42u);
  EXPECT_EQ(seeds->front().salt[15], 15);
  for (const char* line : {"42", "x 000102030405060708090a0b0c0d0e0f", "42 0001", "-1 000102030405060708090a0b0c0d0e0f",
                           "42 000102030405060708090a0b0c0d0e0g"}) {
    EXPECT_FALSE(cli::ParseSeeds(std::string("\n") + line).ok()) << line;
  }
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--write") {
    std::ofstream(sortition::testing::kPath) << sortition::testing::ReceiptVectorsText();
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
