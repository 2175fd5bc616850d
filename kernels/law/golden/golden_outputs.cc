// Writes the law's functions by example, and the file as a whole.
#include "kernels/law/golden/golden_outputs.h"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/golden/json_parts.h"
#include "kernels/law/law.h"
#include "kernels/law/row_law.h"
#include "kernels/law/version.h"

namespace sortition::law {
namespace {

using kernels::DType;

// --- leaf functions: each is a list of [inputs..., output]

// Words of no pattern, the same ones in every build.
std::vector<uint32_t> Words(uint32_t tag, uint32_t count) {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < count; ++i) words.push_back(NoiseWords(i, tag, DrawKey{0, 0, 0, 0}).x);
  return words;
}

// Bits of logits: every class of the domain, and their edges.
std::vector<uint32_t> LogitBits() {
  return {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x217fffff, 0x21800000, 0xa17fffff, 0xa1800000,
          0x3f800000, 0xbf800000, 0x41a00000, 0xc1a00000, 0x477fdfff, 0x477fe000, 0xc77fdfff, 0xc77fe000,
          0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001};
}

std::string Function(const std::string& name, const std::vector<std::string>& cases) {
  return Cat({"    ", Quoted(name), ": [\n      ", Joined(cases, ",\n      "), "\n    ]"});
}

std::string OfLogitBits(const std::string& name, const std::function<uint32_t(uint32_t)>& function) {
  std::vector<std::string> cases;
  for (const uint32_t b : LogitBits()) cases.push_back(Numbers({b, function(b)}));
  return Function(name, cases);
}

std::string WidenCases() {
  std::vector<std::string> cases;
  for (const uint32_t h :
       {0x0000u, 0x8000u, 0x0001u, 0x03ffu, 0x8400u, 0x3c00u, 0xc8ffu, 0x7bffu, 0xfbffu, 0x7c00u, 0xfc00u, 0x7e01u}) {
    cases.push_back(Numbers({h, WidenF16(h)}));
  }
  return Function("widen_f16", cases);
}

// Finite logits with nearby and far exponents.
uint32_t FloatOf(uint32_t word) { return (word & 0x807fffff) | (110 + (word >> 23 & 31)) << 23; }

std::string SoftFloatCases(const std::string& name, uint32_t (*function)(uint32_t, uint32_t)) {
  std::vector<std::string> cases;
  const std::vector<uint32_t> a = Words(1, 24);
  const std::vector<uint32_t> b = Words(2, 24);
  for (size_t i = 0; i < a.size(); ++i) {
    const uint32_t x = FloatOf(a[i]);
    const uint32_t y = i % 3 == 0 ? x ^ 0x80000000 ^ (b[i] & 0xff) : FloatOf(b[i]);
    cases.push_back(Numbers({x, y, function(x, y)}));
  }
  return Function(name, cases);
}

std::string DistanceCases() {
  std::vector<std::string> cases;
  for (const float temperature : {0.01f, 0.5f, 1.0f, 1.7f, 100.0f}) {
    kernels::RowParameters compiled;
    Compile({.temperature = temperature}, &compiled);
    for (const float max : {0.0f, -3.0f, 21.75f, 65000.0f}) {
      const Scale scale = ScaleAt(compiled, FloatBits(max));
      for (const float below : {0.0f, 0.015625f, 0.7f, 30.0f}) {
        const uint32_t x = Canonical(FloatBits(max - below * temperature));
        cases.push_back(
            Numbers({FloatBits(temperature), FloatBits(max), x, scale.e0, scale.shift, Distance(x, scale)}));
      }
    }
  }
  return Function("temperature_max_x_e0_shift_distance", cases);
}

std::string WeightCases() {
  std::vector<std::string> cases;
  std::vector<uint32_t> distances = {0, 1, 0x1fffff, 0x200000, 0x3ffffff, 0x4000000, 0xb3ffffff, 0xb4000000, kDead};
  for (const uint32_t word : Words(3, 24)) distances.push_back(word % 0xb4000000);
  for (const uint32_t t : distances) cases.push_back(List({Number(t), Wide(Weight(t))}));
  return Function("weight", cases);
}

std::string TopPThresholdCases() {
  std::vector<std::string> cases;
  for (const uint32_t p : {1u, 0x80000000u, 0xe6666666u, 0xffffff00u}) {
    for (const uint64_t sum : {kUnitWeight, 3 * kUnitWeight + 12345, uint64_t{0xfedcba9876543210}}) {
      cases.push_back(List({Wide(sum), Number(p), Wide(LeastSum(TopPThreshold(sum, p)))}));
    }
  }
  return Function("top_p_threshold", cases);
}

std::string LogCases() {
  std::vector<std::string> cases;
  std::vector<uint64_t> inputs = {1, 2, 3, uint64_t{1} << 44, ~uint64_t{0}};
  const std::vector<uint32_t> words = Words(4, 24);
  for (size_t i = 0; i < words.size(); ++i) inputs.push_back((uint64_t{words[i]} << 32 | words[23 - i]) >> i);
  for (const uint64_t x : inputs) cases.push_back(List({Wide(x), WideSigned(Log2Raw(x))}));
  return Function("log2_raw", cases);
}

std::string NegLogCases() {
  std::vector<std::string> cases;
  std::vector<uint64_t> words = {0, 63, 64, uint64_t{1} << 60, (uint64_t{1} << 60) - 1, ~uint64_t{0}};
  const std::vector<uint32_t> random = Words(5, 24);
  for (size_t i = 0; i < random.size(); ++i) words.push_back((uint64_t{random[i]} << 32 | random[23 - i]) >> (2 * i));
  for (const uint64_t word : words)
    cases.push_back(List({Wide(word), Number(Owner(word)), Wide(NegLog2(Uniform(word)))}));
  return Function("word_owner_neg_log2", cases);
}

std::string NoiseCases() {
  std::vector<std::string> cases;
  const auto add = [&cases](const DrawKey& key, uint32_t id) {
    const uint64_t word = WordOf(NoiseWords(id / 128, kGroupTag, key), id / 64);
    const uint64_t a = NegLog2(Uniform(word));
    const uint64_t own = WordOf(NoiseWords(id / 2, kTokenTag, key), id);
    const uint64_t log = Owner(word) == id % 64 ? OwnerLog(a) : OtherLog(a, NegLog2(Uniform(own)));
    cases.push_back(List({Number(key.seed_low), Number(key.seed_high), Number(key.position), Number(key.stream),
                          Number(id), Wide(word), Wide(own), WideSigned(log)}));
  };
  for (const uint32_t id : {0u, 1u, 63u, 64u, 128255u}) add({0x11111111, 0x22222222, 5, 0}, id);
  for (const uint32_t id : {0u, 7u, 127u, 262143u, 1048574u}) add({0x89abcdef, 0x01234567, 4000000000, 0x00020001}, id);
  return Function("seed_low_seed_high_position_stream_id_group_word_token_word_log", cases);
}

std::string MinPCases() {
  std::vector<std::string> cases;
  for (const float p : {0.0f, 1.0f, 0.5f, 0.1f, 0.05f, 0.02f, 0.3f, 0.9999999f, 0x1p-63f, 0x1.000002p-63f, 1e-10f}) {
    cases.push_back(Numbers({FloatBits(p), MinPDistance(p)}));
  }
  return Function("min_p_distance", cases);
}

std::string PenaltyCases() {
  std::vector<std::string> cases;
  for (const float frequency : {0.0f, 0.1f, -2.0f, 100.0f}) {
    for (const float presence : {0.0f, 0.7f, -0.1f}) {
      for (const uint32_t count : {1u, 3u, 1000001u}) {
        cases.push_back(
            Numbers({FloatBits(frequency), FloatBits(presence), count, PenaltyBits(frequency, presence, count)}));
      }
    }
  }
  return Function("penalty_bits", cases);
}

std::string Functions() {
  const std::vector<std::string> functions = {
      OfLogitBits("canonical", Canonical),
      OfLogitBits("flush", Flush),
      OfLogitBits("key_of_canonical", [](uint32_t b) { return Key(Canonical(b)); }),
      WidenCases(),
      SoftFloatCases("add_f32", AddF32),
      SoftFloatCases("multiply_f32", MultiplyF32),
      DistanceCases(),
      WeightCases(),
      TopPThresholdCases(),
      LogCases(),
      NegLogCases(),
      NoiseCases(),
      MinPCases(),
      PenaltyCases()};
  return Joined(functions, ",\n");
}

}  // namespace

std::string GoldenOutputsJson() {
  std::vector<std::string> rows;
  for (const GoldenRow& row : GoldenRows()) rows.push_back(GoldenRowJson(row));
  return Cat({"{\n  ", Field("law_version", Number(kLawVersion)), ",\n  \"functions\": {\n", Functions(),
              "\n  },\n  \"rows\": [\n", Joined(rows, ",\n"), "\n  ]\n}\n"});
}

}  // namespace sortition::law
