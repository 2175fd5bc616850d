// The history hash against its published vectors, which were computed by an independent implementation.
#include "service/text/history/history_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "service/text/history_options.h"
#include "service/text/sequence_spec.h"

namespace sortition::service::history_hash_test {
namespace {

using google::protobuf::Struct;

uint64_t Hex(const Struct& object, const std::string& name) {
  uint64_t value = 0;
  EXPECT_TRUE(absl::SimpleHexAtoi(object.fields().at(name).string_value(), &value)) << name;
  return value;
}

uint32_t Number(const Struct& object, const std::string& name) {
  return static_cast<uint32_t>(object.fields().at(name).number_value());
}

TEST(HistoryHash, PublishedVectors) {
  std::stringstream text;
  text << std::ifstream(HISTORY_HASH_VECTORS).rdbuf();
  Struct file;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), &file).ok());
  const auto& vectors = file.fields().at("vectors").list_value();
  ASSERT_GE(vectors.values_size(), 6);
  for (const auto& value : vectors.values()) {
    const Struct& vector = value.struct_value();
    HistoryIdentity spec;
    spec.law_version = Number(vector, "law_version");
    spec.seed = Hex(vector, "seed");
    spec.choice_index = Number(vector, "choice_index");
    spec.vocabulary = Number(vector, "vocabulary_size");
    spec.live_vocabulary = Number(vector, "live_vocabulary_size");
    spec.repetition_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "repetition_penalty_bits")));
    spec.frequency_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "frequency_penalty_bits")));
    spec.presence_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "presence_penalty_bits")));
    if (const auto words = vector.fields().find("option_words"); words != vector.fields().end()) {
      for (const auto& word : words->second.list_value().values()) {
        spec.options.push_back(static_cast<uint64_t>(word.number_value()));
      }
    }
    const uint64_t digest = HistoryDigest(spec);
    EXPECT_EQ(digest, Hex(vector, "digest"));
    uint64_t token_hash = kEmptyHash;
    for (const auto& token : vector.fields().at("tokens").list_value().values()) {
      token_hash = ExtendTokenHash(token_hash, static_cast<uint32_t>(token.number_value()));
    }
    EXPECT_EQ(token_hash, Hex(vector, "chain"));
    EXPECT_EQ(HistoryHash(token_hash, Number(vector, "prompt_length"), digest), Hex(vector, "hash"));
  }
}

TEST(HistoryHash, CopiedSpecHasItsOwnDigest) {
  SequenceSpec spec;
  const uint64_t digest = spec.digest();
  EXPECT_EQ(digest, HistoryDigest(spec.Identity()));
  SequenceSpec other = spec;
  other.seed = 1;
  EXPECT_EQ(other.digest(), HistoryDigest(other.Identity()));
  EXPECT_NE(other.digest(), digest);
  EXPECT_EQ(spec.digest(), digest);
}

TEST(HistoryHash, EveryWordOfIdentityMatters) {
  HistoryIdentity spec;
  spec.law_version = 1;
  spec.vocabulary = spec.live_vocabulary = 100;
  std::set<uint64_t> hashes = {HistoryDigest(spec)};
  const auto changed = [&](auto change) {
    HistoryIdentity other = spec;
    change(other);
    EXPECT_TRUE(hashes.insert(HistoryDigest(other)).second);
  };
  changed([](HistoryIdentity& s) { s.law_version = 2; });
  changed([](HistoryIdentity& s) { s.seed = 1; });
  changed([](HistoryIdentity& s) { s.choice_index = 1; });
  changed([](HistoryIdentity& s) { s.vocabulary = 101; });
  changed([](HistoryIdentity& s) { s.live_vocabulary = 99; });
  changed([](HistoryIdentity& s) { s.repetition_penalty = 2; });
  changed([](HistoryIdentity& s) { s.frequency_penalty = 2; });
  changed([](HistoryIdentity& s) { s.presence_penalty = 2; });
}

// The words of the last vector's options, as the page lists them.
TEST(HistoryHash, WordsOfOptions) {
  HistoryOptions options;
  options.scope = {
      .window = 64, .ignored_prefix = 10, .repetition_counts_prompt = true, .frequency_counts_prompt = true};
  EXPECT_EQ(options.Words(), (std::vector<uint64_t>{8, 64, 3, 10}));
  options = HistoryOptions();
  options.dry.multiplier = 0.8f;
  options.dry.base = 1.75f;
  options.dry.allowed_length = 2;
  options.dry.breakers = {{5}, {5, 6}};
  options.no_repeat_ngram = 3;
  options.min_tokens = 20;
  options.stop_tokens = {7, 9};
  options.bad_words = {{1, 2, 4}, {8, 5}};
  options.phases.resize(2);
  options.phases[0].max_tokens = 100;
  options.phases[0].then = {11, 12};
  options.phases[1].begin = {3};
  options.phases[1].end = {4, 5};
  options.phases[1].options.frequency_penalty = 0.5f;
  EXPECT_EQ(options.Words(),
            (std::vector<uint64_t>{
                32, 0x3f4ccccd, 0x3fe00000, 2,          0, 2, 1, 5, 2, 5, 6, 33, 3, 34, 20,         2,          7,
                9,  36,         0,          2,          3, 1, 2, 4, 2, 8, 5, 37, 2, 0,  0,          2,          11,
                12, 1,          100,        0x3f800000, 0, 0, 1, 3, 2, 4, 5, 0,  0, 0,  0x3f800000, 0x3f000000, 0}));
}

// Penalties count prompt and output separately, so the same tokens with another prompt are another history.
TEST(HistoryHash, PromptMatters) {
  std::set<uint64_t> hashes;
  for (uint32_t prompt_length = 0; prompt_length < 100; ++prompt_length) {
    EXPECT_TRUE(hashes.insert(HistoryHash(kEmptyHash, prompt_length, 7)).second);
  }
}

}  // namespace
}  // namespace sortition::service::history_hash_test
