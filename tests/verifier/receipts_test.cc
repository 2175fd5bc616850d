// The verifier of sortitionctl against published receipts, right ones and wrong ones. With --write as an argument this
// program writes the files of them instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "client/receipts/receipt_rows.h"
#include "service/wire/receipt_words.h"
#include "tests/verifier/receipt_chain.h"
#include "tests/verifier/receipt_vectors.h"

namespace sortition::testing::receipts_test {
namespace {

using client::ReceiptCheck;

constexpr char kPath[] = SORTITION_SOURCE_DIR "/tests/verifier/receipts_vectors.json";
constexpr char kMasksPath[] = SORTITION_SOURCE_DIR "/tests/verifier/receipt_masks_vectors.json";

std::string TextOfFile(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> TextsOf(const std::vector<ExpectedProblem>& problems) {
  std::vector<std::string> texts;
  for (const ExpectedProblem& problem : problems) {
    texts.push_back(problem.name + " " + problem.chain + " " + (problem.index ? std::to_string(*problem.index) : "-"));
  }
  return texts;
}

std::vector<std::string> TextsOf(const std::vector<client::ReceiptProblem>& problems) {
  std::vector<ExpectedProblem> expected;
  for (const client::ReceiptProblem& problem : problems)
    expected.push_back({problem.name, problem.chain, problem.index});
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
  EXPECT_TRUE(TextOfFile(kPath) == ReceiptVectorsText()) << "receipts_test --write writes it";
  EXPECT_TRUE(TextOfFile(kMasksPath) == MaskVectorsText());
}

// Returns the path of a file with these words.
template <typename Word>
std::string WriteRows(const std::string& name, const std::vector<std::vector<Word>>& rows) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<Word>& row : rows) {
    file.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size() * sizeof(Word)));
  }
  return path;
}

TEST(ReceiptMasks, VerifierFindsWhatVectorsSay) {
  for (const MaskVector& vector : MakeMaskVectors()) {
    client::ReceiptRows::Options options;
    // A row of a file has one element for each token of the vocabulary, padding included.
    std::vector<std::vector<float>> padded = vector.rows;
    for (std::vector<float>& row : padded) row.resize(48);
    options.path = WriteRows("logits", padded);
    options.dtype = v1::DTYPE_F32;
    if (!vector.masks.empty()) options.masks = WriteRows("masks", vector.masks);
    client::ReceiptRows rows(options);
    std::optional<ReceiptCheck> check;
    check.emplace(
        ReceiptCheck::Options{vector.file.keys, vector.file.seeds,
                              [&](const std::string& id, const client::CheckedChain& chain,
                                  const service::Receipt& receipt) { rows.Take(id, chain, receipt, &*check); }});
    check->Read(vector.file.records);
    check->Finish();
    EXPECT_TRUE(rows.status().ok()) << rows.status();
    EXPECT_EQ(TextsOf(check->problems()), TextsOf(vector.file.problems)) << vector.file.name;
    EXPECT_EQ(check->counts().receipts, vector.file.receipts) << vector.file.name;
    EXPECT_EQ(check->counts().signed_receipts, vector.file.signed_receipts) << vector.file.name;
    EXPECT_EQ(check->counts().drawn, vector.file.drawn) << vector.file.name;
    EXPECT_EQ(rows.counts().agreed, vector.compared) << vector.file.name;
    EXPECT_EQ(rows.counts().compared + rows.counts().no_mask, vector.rows.size()) << vector.file.name;
  }
}

// A set of tokens has one hash, however it is sent.
TEST(ReceiptMasks, ListAndBitsHaveOneHash) {
  const std::vector<uint32_t> words = {0x80000001, 0xffffff02};
  for (const uint32_t live : {40u, 41u}) {
    const std::vector<uint32_t> tokens =
        live == 40 ? std::vector<uint32_t>{0, 31, 33} : std::vector<uint32_t>{0, 31, 33, 40};
    EXPECT_EQ(service::MaskHashOf(words, live), service::MaskHashOfTokens(tokens, live));
  }
  EXPECT_NE(service::MaskHashOf(words, 40), service::MaskHashOf(words, 41));
}

// A file of any length is held record by record.
TEST(ReceiptReader, HoldsNoMoreThanRecords) {
  const ReceiptVector vector = MakeReceiptVectors().front();
  std::string largest;
  service::AppendRecord(service::ReceiptRecord::kReceipt, std::string(service::kMaxRecordBytes, 'x'), &largest);
  ReceiptCheck check({vector.keys, vector.seeds});
  for (int i = 0; i < 1'100; ++i) check.Read(vector.records);
  EXPECT_EQ(check.held_bytes(), std::string().capacity());
  for (size_t begin = 0; begin < largest.size(); begin += 100'000) {
    check.Read(std::string_view(largest).substr(begin, 100'000));
    EXPECT_LE(check.held_bytes(), 2 * largest.size());
  }
  EXPECT_EQ(check.counts().receipts, 1'100 * vector.receipts + 1);
  EXPECT_EQ(check.problems().size(), ReceiptCheck::kMostProblems);
  EXPECT_EQ(check.chains().size(), 1u);

  ReceiptCheck endless({{}, {}});
  for (const char* const piece : {"\x02\x01", "\x00\x00"}) endless.Read({piece, 2});
  endless.Read(std::string("\x01", 1) + std::string(1 << 20, 'x'));
  EXPECT_THAT(TextsOf(endless.problems()), ::testing::ElementsAre("bad_record  -"));
  EXPECT_LT(endless.held_bytes(), 100u);
}

// Chains of one kind share their compiled parameters, so a file may have very many chains.
TEST(ReceiptReader, ChainsShareTheirOptions) {
  vectors::Chain a("a", 1, {}), b("b", 2, {}), other("c", 3, [] {
    v1::SamplingParameters parameters;
    parameters.set_top_k(3);
    return parameters;
  }());
  ReceiptCheck check({{}, {}});
  for (const vectors::Chain* const chain : {&a, &b, &other}) check.Read(chain->Opening());
  const auto spec_of = [&](const vectors::Chain& chain) { return check.chains().at(chain.id()).spec; };
  EXPECT_NE(spec_of(a), nullptr);
  EXPECT_EQ(spec_of(a), spec_of(b));
  EXPECT_NE(spec_of(a), spec_of(other));
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
  EXPECT_TRUE(service::ParseReceiptWords(Words{}));
  for (const Words& words :
       {Words{1}, Words{1, 1}, Words{1, 2, 0, 0}, Words{2, 1, 40, 1, 1, 0}, Words{1, 0}, Words{999, 0}, Words{38, 0},
        Words{18, 3, 1, 1, 9}, Words{9, 2, 1, 0}, Words{1, 1, 0, 1, 1, 0}, Words{36, 1, 5}}) {
    EXPECT_FALSE(service::ParseReceiptWords(words)) << words.size();
  }
}

// A phase has no phases, however many words nest them.
TEST(ReceiptWords, PhasesWithinPhasesAreRefused) {
  std::vector<uint32_t> words;
  for (int depth = 0; depth < 100; ++depth) {
    const auto within = static_cast<uint32_t>(words.size());
    std::vector<uint32_t> around = {37, within + 3, within + 2, 5, within};
    around.insert(around.end(), words.begin(), words.end());
    words = std::move(around);
    EXPECT_EQ(service::ParseReceiptWords(words).has_value(), depth == 0) << depth;
  }
}

TEST(SeedOpenings, LinesThatAreNoneAreNamed) {
  const auto seeds = client::ParseSeeds("# a comment\n\n 42 000102030405060708090A0B0C0D0E0F \r\n");
  ASSERT_TRUE(seeds.ok()) << seeds.status();
  ASSERT_EQ(seeds->size(), 1u);
  EXPECT_EQ(seeds->front().seed, 42u);
  EXPECT_EQ(seeds->front().salt[15], 15);
  for (const char* line : {"42", "x 000102030405060708090a0b0c0d0e0f", "42 0001", "-1 000102030405060708090a0b0c0d0e0f",
                           "42 000102030405060708090a0b0c0d0e0g"}) {
    EXPECT_FALSE(client::ParseSeeds(std::string("\n") + line).ok()) << line;
  }
}

}  // namespace
}  // namespace sortition::testing::receipts_test

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--write") {
    std::ofstream(sortition::testing::receipts_test::kPath) << sortition::testing::ReceiptVectorsText();
    std::ofstream(sortition::testing::receipts_test::kMasksPath) << sortition::testing::MaskVectorsText();
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
