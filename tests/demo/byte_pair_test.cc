// The demo's byte-pair vocabulary: exact round trips, merges worked out by hand, determinism.
#include "client/demo/byte_pair.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "client/demo/corpus.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sortition::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kMaxTokens = 4095;

const BytePair& Learned() {
  static const BytePair vocabulary = BytePair::Learn(CorpusTexts(), kMaxTokens);
  return vocabulary;
}

void ExpectRoundTrip(std::string_view text) {
  const std::vector<uint32_t> ids = Learned().Encode(text);
  for (uint32_t id : ids) ASSERT_LT(id, Learned().size());
  ASSERT_EQ(Learned().Decode(ids), text);
}

TEST(BytePairTest, LearnsMergesWorkedOutByHand) {
  // "aaab", " aaab": aa (4 times), then ab before (aa)a, both twice but ab has the lower ids, then aaab, then " aaab".
  const std::vector<std::string_view> texts = {"aaab aaab"};
  const BytePair vocabulary = BytePair::Learn(texts, 1000);
  ASSERT_EQ(vocabulary.size(), 260u);
  EXPECT_EQ(vocabulary.Decode(std::vector<uint32_t>{256}), "aa");
  EXPECT_EQ(vocabulary.Decode(std::vector<uint32_t>{257}), "ab");
  EXPECT_EQ(vocabulary.Decode(std::vector<uint32_t>{258}), "aaab");
  EXPECT_EQ(vocabulary.Decode(std::vector<uint32_t>{259}), " aaab");
  EXPECT_THAT(vocabulary.Encode("aaab aaab"), ElementsAre(258, 259));
  EXPECT_THAT(vocabulary.Encode("aab"), ElementsAre(256, 'b'));
  EXPECT_THAT(vocabulary.Encode("a b"), ElementsAre('a', ' ', 'b'));
}

TEST(BytePairTest, StopsAtTheLimit) {
  const std::vector<std::string_view> texts = {"aaab aaab"};
  EXPECT_EQ(BytePair::Learn(texts, 256).size(), 256u);
  EXPECT_EQ(BytePair::Learn(texts, 258).size(), 258u);
  EXPECT_THAT(BytePair::Learn(texts, 258).Encode("aaab"), ElementsAre(256, 257));
}

TEST(BytePairTest, LearnsFromNothing) {
  const BytePair vocabulary = BytePair::Learn({}, 1000);
  EXPECT_EQ(vocabulary.size(), 256u);
  EXPECT_THAT(vocabulary.Encode("no"), ElementsAre('n', 'o'));
}

TEST(BytePairTest, EmptyTextHasNoToken) {
  EXPECT_THAT(Learned().Encode(""), IsEmpty());
  EXPECT_EQ(Learned().Decode({}), "");
}

TEST(BytePairTest, CorpusRoundTripsAndWordsAreTokens) {
  EXPECT_LE(Learned().size(), kMaxTokens);
  for (std::string_view text : CorpusTexts()) ExpectRoundTrip(text);
  EXPECT_THAT(Learned().Encode("Once, in a village between the hill and the sea,"), SizeIs(12));
}

TEST(BytePairTest, EveryTokenRoundTrips) {
  for (uint32_t id = 0; id < Learned().size(); ++id) ExpectRoundTrip(Learned().Decode(std::vector<uint32_t>{id}));
}

TEST(BytePairTest, ArbitraryBytesRoundTrip) {
  std::mt19937_64 random(20240607);
  for (size_t length = 0; length < 400; ++length) {
    std::string text(length, '\0');
    for (char& c : text) c = static_cast<char>(random() & 255);
    ExpectRoundTrip(text);
  }
}

TEST(BytePairTest, CorpusCutsAndSpacesRoundTrip) {
  std::mt19937_64 random(20240608);
  const std::vector<std::string_view> texts = CorpusTexts();
  constexpr std::string_view kGaps[] = {"", " ", "  ", "   ", "\n", " \n ", "\t", "\xff", "\xc3\xa9"};
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    const std::string_view source = texts[random() % texts.size()];
    text += source.substr(random() % source.size(), random() % 40);
    text += kGaps[random() % std::size(kGaps)];
  }
  ExpectRoundTrip(text);
  for (size_t length = 1; length < 100; ++length) ExpectRoundTrip(std::string(length, ' ') + "x");
}

TEST(BytePairTest, LongWordIsEncodedInLinearTime) { ExpectRoundTrip(std::string(size_t{1} << 20, 'a')); }

TEST(BytePairTest, LearningIsDeterministic) {
  const BytePair again = BytePair::Learn(CorpusTexts(), kMaxTokens);
  ASSERT_EQ(again.size(), Learned().size());
  for (uint32_t id = 0; id < again.size(); ++id) {
    ASSERT_EQ(again.Decode(std::vector<uint32_t>{id}), Learned().Decode(std::vector<uint32_t>{id}));
  }
}

TEST(BytePairDeathTest, RefusesUnknownIdAndTooFewTokens) {
  EXPECT_DEATH(Learned().Decode(std::vector<uint32_t>{Learned().size()}), "broken invariant");
  EXPECT_DEATH(BytePair::Learn({}, 255), "broken invariant");
}

}  // namespace
}  // namespace sortition::demo
