// Costs by name. Rates are those of CUDA's programming guide for 9.0; latencies are what is published of
// microbenchmarks.
#include "tests/ptx/cycles.h"

#include <algorithm>
#include <initializer_list>

namespace sortition::testing::ptx {
namespace {

bool Begins(std::string_view name, std::initializer_list<std::string_view> with) {
  return std::ranges::any_of(with, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool Has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

}  // namespace

Cost CostOf(std::string_view name) {
  const bool is_wide = Has(name, ".u64") || Has(name, ".s64") || Has(name, ".b64");
  if (Begins(name, {"ld.", "st.", "atom."})) {
    // The last block of a row reads what other blocks have just written, from the second cache.
    const uint32_t latency = Has(name, ".param")                           ? 8
                             : Has(name, ".shared") || Has(name, ".local") ? kOnChipCycles
                                                                           : 300;
    return {Pipe::kMemory, 2, uint16_t(latency)};
  }
  if (Begins(name, {"shfl.", "redux.", "vote."})) return {Pipe::kMemory, 2, 24};
  if (Begins(name, {"membar"})) return {Pipe::kControl, 1, 500};
  if (Begins(name, {"bra", "call", "ret", "bar."})) return {Pipe::kControl, 1, 8};
  if (Begins(name, {"mov.", "cvta.", "cvt.u64.u32", "cvt.u32.u64", "cvt.u16.u32", "cvt.u32.u16"})) {
    return {Pipe::kNone, 0, 0};
  }
  if (Has(name, ".f64")) return {Pipe::kDouble, uint8_t(Begins(name, {"div."}) ? 40 : 2), 16};
  if (Begins(name, {"cvt.", "popc.", "clz.", "brev.", "bfind."})) return {Pipe::kSlow, 8, 16};
  if (Begins(name, {"add", "sub", "mul", "fma"}) && Has(name, ".f32")) return {Pipe::kFloat, 1, 4};
  if (Begins(name, {"mul", "mad"})) {
    const bool is_product_of_64_bits = is_wide && !Has(name, ".wide");
    return {Pipe::kMultiply, uint8_t(is_product_of_64_bits ? 8 : 2), uint16_t(is_product_of_64_bits ? 18 : 5)};
  }
  return {Pipe::kInteger, uint8_t(is_wide ? 4 : 2), uint16_t(is_wide ? 10 : 5)};
}

}  // namespace sortition::testing::ptx
