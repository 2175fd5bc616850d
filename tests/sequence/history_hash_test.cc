// The history hash against its published vectors, which were computed by an independent implementation.
#include "service/sequence/history_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace sortition::service {
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
  ASSERT_GE(vectors.values_size(), 4);
  for (const auto& value : vectors.values()) {
    const Struct& vector = value.struct_value();
    SequenceSpec spec;
    spec.law_version = Number(vector, "law_version");
    spec.seed = Hex(vector, "seed");
    spec.choice_index = Number(vector, "choice_index");
    spec.vocabulary = Number(vector, "vocabulary_size");
    spec.live_vocabulary = Number(vector, "live_vocabulary_size");
    spec.repetition_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "repetition_penalty_bits")));
    spec.frequency_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "frequency_penalty_bits")));
    spec.presence_penalty = std::bit_cast<float>(static_cast<uint32_t>(Hex(vector, "presence_penalty_bits")));
    uint64_t hash = EmptyHistoryHash(spec);
    EXPECT_EQ(hash, Hex(vector, "empty_hash"));
    for (const auto& token : vector.fields().at("tokens").list_value().values()) {
      hash = ExtendHistoryHash(hash, static_cast<uint32_t>(token.number_value()));
    }
    EXPECT_EQ(hash, Hex(vector, "hash"));
  }
}

TEST(HistoryHash, EveryWordOfTheSpecMatters) {
  SequenceSpec spec;
  spec.law_version = 1;
  spec.vocabulary = spec.live_vocabulary = 100;
  std::set<uint64_t> hashes = {EmptyHistoryHash(spec)};
  const auto changed = [&](auto change) {
    SequenceSpec other = spec;
    change(other);
    EXPECT_TRUE(hashes.insert(EmptyHistoryHash(other)).second);
  };
  changed([](SequenceSpec& s) { s.law_version = 2; });
  changed([](SequenceSpec& s) { s.seed = 1; });
  changed([](SequenceSpec& s) { s.choice_index = 1; });
  changed([](SequenceSpec& s) { s.vocabulary = 101; });
  changed([](SequenceSpec& s) { s.live_vocabulary = 99; });
  changed([](SequenceSpec& s) { s.repetition_penalty = 2; });
  changed([](SequenceSpec& s) { s.frequency_penalty = 2; });
  changed([](SequenceSpec& s) { s.presence_penalty = 2; });
}

}  // namespace
}  // namespace sortition::service
