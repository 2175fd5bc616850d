// Compilation of sampling options to the law's integers.
#include "kernels/law/parameters.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/law.h"
#include "kernels/law/options.h"
#include "kernels/law/row_law.h"
#include "kernels/law/units.h"

namespace sortition::law {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;  // the double nearest to log2(e)
constexpr double k63Ln2 = 0x1.5d589f2fe5107p+5;  // the double nearest to 63 ln 2

// The ranges of frequency_penalty and presence_penalty are [-kMostPenalty, kMostPenalty].
constexpr double kMostPenalty = NumberNamed("frequency_penalty").most.value;
static_assert(kMostPenalty == NumberNamed("presence_penalty").most.value);

// A positive normal double as mantissa * 2^(exponent - 52), 2^52 <= mantissa < 2^53.
struct Parts {
  uint64_t mantissa;
  int32_t exponent;
};

Parts PartsOf(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  return {(bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52, int32_t(bits >> 52 & 0x7ff) - 1023};
}

// round half even of value / 2^n, 1 <= n < 64
uint64_t RoundedShift(uint64_t value, int n) {
  const uint64_t quotient = value >> n;
  const uint64_t rest = value & ((uint64_t{1} << n) - 1);
  const uint64_t tie = uint64_t{1} << (n - 1);
  return quotient + (rest > tie || (rest == tie && (quotient & 1) != 0));
}

// floor(log2(m / 2^23) * 2^26) for 2^23 <= m < 2^24, bit by bit: squaring doubles a logarithm. Each squaring also
// doubles the relative error of the cut bits, to 2^-36 at the last; of all mantissas, none comes within 2^-28 of a
// wrong bit (a test visits every one).
uint32_t Log2Mantissa(uint32_t m) {
  uint64_t x = uint64_t{m} << 40;  // Q63, 1 <= x < 2
  uint32_t log = 0;
  for (int bit = 0; bit < 26; ++bit) {
    const unsigned __int128 square = static_cast<unsigned __int128>(x) * x;  // Q126
    const uint32_t carry = uint32_t(square >> 127);
    x = uint64_t(square >> (63 + carry));
    log = log << 1 | carry;
  }
  return log;
}

}  // namespace

Temperature TemperatureConstants(double t) {
  const Parts c = PartsOf(kLog2E / t);
  Temperature constants;
  constants.multiplier = uint32_t(RoundedShift(c.mantissa, 22));
  constants.exponent = c.exponent;
  if (constants.multiplier == 1u << 31) {
    constants.multiplier = 1u << 30;
    constants.exponent += 1;
  }
  constants.window = uint32_t(127 + PartsOf(k63Ln2 * t).exponent);
  return constants;
}

uint64_t RoundedUnits(double value, int bits) {
  const double scaled = value * double(uint64_t{1} << bits);
  const auto units = uint64_t(scaled);
  const double rest = scaled - double(units);
  return units + (rest > 0.5 || (rest == 0.5 && (units & 1) != 0));
}

// A p that rounds to 0 keeps the first token alone, and so does 1.
uint32_t TopPUnits(float p) {
  const uint64_t units = RoundedUnits(p, 32);
  if (units >= uint64_t{1} << 32) return 0;
  return units == 0 ? 1 : uint32_t(units);
}

uint32_t CanonicalBits(float value) { return Flush(std::bit_cast<uint32_t>(value)); }

uint32_t PenaltyBits(float frequency, float presence, uint32_t count, double dry) {
  SORTITION_CHECK(std::abs(frequency) <= kMostPenalty && std::abs(presence) <= kMostPenalty);
  SORTITION_CHECK(dry >= 0);
  const double counted = count == 0 ? 0.0 : double(frequency) * double(count) + double(presence);
  return CanonicalBits(float(-(counted + dry)));
}

uint32_t MinPDistance(float min_p) {
  SORTITION_CHECK(min_p >= 0 && min_p <= 1);
  // At 2^-63 and below, every distance that is not dead passes.
  if (min_p <= 0x1p-63f) return kernels::RowParameters::kMinPOff;
  const uint32_t bits = std::bit_cast<uint32_t>(min_p);
  const uint32_t octaves = 127 - (bits >> 23);
  const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  // -log2(min_p) = octaves - log2(mantissa); the logarithm of a number that is no power of two is irrational, so the
  // ceiling of the last term is its floor plus one.
  const uint32_t ceiling = mantissa == 0x800000 ? 0 : Log2Mantissa(mantissa) + 1;
  return (octaves << 26) - ceiling;
}

static void CompileTemperature(float temperature, kernels::RowParameters* compiled) {
  compiled->greedy = temperature == 0;
  const double t = compiled->greedy ? 1.0 : double(temperature);
  const Temperature constants = TemperatureConstants(t);
  compiled->multiplier = constants.multiplier;
  compiled->exponent = constants.exponent;
  compiled->window = constants.window;
  compiled->temperature = t;
}

// True if the stages are some of temperature, min-p, top-k and top-p, in this order, and none has to keep more than one
// token.
static bool IsPlain(const std::vector<kernels::Stage>& chain) {
  return std::is_sorted(chain.begin(), chain.end(), [](auto& a, auto& b) { return a.kind < b.kind; }) &&
         (chain.empty() || chain.back().kind <= kernels::StageKind::kTopP) &&
         std::ranges::none_of(chain, [](const kernels::Stage& stage) { return LeastCount(ToStageWords(stage)) != 0; });
}

void Compile(const SamplingParameters& parameters, kernels::RowParameters* compiled) {
  SORTITION_CHECK(!FindOutOfRange(parameters));
  const float temperature = parameters.temperature;
  const float repetition = parameters.repetition_penalty;
  compiled->chain.clear();
  if (temperature != 0) compiled->chain = CompileChain(parameters);
  const bool chained = !IsPlain(compiled->chain);
  CompileTemperature(chained ? 1 : temperature, compiled);
  compiled->top_k = chained || parameters.top_k == 0 ? 0 : std::max(parameters.top_k, parameters.min_keep);
  compiled->top_p = chained ? 0 : TopPUnits(parameters.top_p);
  compiled->min_p_distance = chained ? kernels::RowParameters::kMinPOff : MinPDistance(parameters.min_p);
  if (!chained) compiled->chain.clear();
  const bool repeats = repetition != 1;
  compiled->repetition = repeats ? std::bit_cast<uint32_t>(repetition) : 0;
  compiled->inverse_repetition = repeats ? std::bit_cast<uint32_t>(1.0f / repetition) : 0;
}

}  // namespace sortition::law
