// What the CUDA kernels' source becomes: PTX whose only floating point is that of logprobs, and machine code whose hot
// loops keep their registers.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace sortition::kernels::cuda {
namespace {

constexpr char kNoAssembly[] = "this build has no CUDA kernels for compute capability 9.0 (nvcc)";

struct Assembly {
  std::string ptx;
  std::string report;  // the assembler's
};

#ifdef SORTITION_CUDA_ASSEMBLY

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What the build made of kernels/cuda/`name`.cu for compute capability 9.0; nothing if it made none.
std::optional<Assembly> AssemblyOf(const std::string& name) {
  const std::string path = SORTITION_CUDA_ASSEMBLY + name + "_90";
  return Assembly{.ptx = Contents(path + ".ptx"), .report = Contents(path + ".txt")};
}

#else

std::optional<Assembly> AssemblyOf(const std::string&) { return std::nullopt; }

#endif

// Every instruction on floating point, with how it rounds: IEEE double operations rounded once and conversions, all of
// Logprob (logprob.cuh); and those that are exact: comparisons, f16 to f32, and a scaling by a power of two that is cut
// to an integer (weigher.cuh). No fused multiply-add, no approximation, no flushing of denormals.
void ExpectFloatingPointOfLogprobsAlone(const std::string& ptx) {
  std::set<std::string> seen;
  const std::regex instruction(R"(^\s*(?:@%p\d+ )?([a-z][a-z0-9_.:]*\.b?f(?:16|32|64)[a-z0-9.]*)\s)");
  std::istringstream lines(ptx);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, instruction) && match[1].str().rfind(".reg", 0) != 0) seen.insert(match[1]);
  }
  const std::set<std::string> allowed = {
      "sub.rn.f64", "mul.rn.f64", "div.rn.f64",  "cvt.f64.f32", "cvt.rn.f32.f64",  "cvt.rn.f64.s64", "mov.f64",
      "mov.f32",    "selp.f64",   "cvt.f32.f16", "mul.rn.f32",  "cvt.rzi.s32.f32", "setp.ge.f32",    "selp.f32"};
  for (const std::string& name : seen) {
    const bool moves = name.rfind("ld.", 0) == 0 || name.rfind("st.", 0) == 0;
    EXPECT_TRUE(moves || allowed.contains(name)) << name;
  }
  EXPECT_TRUE(seen.contains("div.rn.f64")) << "the assembly was not understood";
}

// Eight loads under way for each type of elements.
void ExpectLoadsOf16Bytes(const std::string& ptx) {
  size_t loads = 0;
  for (size_t at = 0; (at = ptx.find("ld.global.nc.v4.u32", at)) != std::string::npos; ++at) ++loads;
  EXPECT_GE(loads, 3u * 8);
}

// By function, what the assembler says of spills: there are none in the `functions` whose names match `hot`.
void ExpectNoSpillsInHotLoops(const std::string& report, int registers, const std::regex& hot, int functions) {
  std::map<std::string, int> spilled;
  std::string function;
  std::istringstream lines(report);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, std::regex("Function properties for (\\S+)"))) function = match[1];
    if (std::regex_search(line, match, std::regex("(\\d+) bytes spill stores, (\\d+) bytes spill loads"))) {
      spilled[function] += std::stoi(match[1]) + std::stoi(match[2]);
    }
    if (std::regex_search(line, match, std::regex("Used (\\d+) registers"))) {
      EXPECT_LE(std::stoi(match[1]), registers);
    }
  }
  int met = 0;
  for (const auto& [name, bytes] : spilled) {
    if (std::regex_search(name, hot)) {
      ++met;
      EXPECT_EQ(bytes, 0) << name;
    }
    EXPECT_LE(bytes, 600) << name;
  }
  EXPECT_EQ(met, functions) << report;
}

TEST(CudaAssembly, OfSampleIsWhatItIsMeantToBe) {
  const std::optional<Assembly> assembly = AssemblyOf("sample");
  if (!assembly) GTEST_SKIP() << kNoAssembly;
  ExpectFloatingPointOfLogprobsAlone(assembly->ptx);
  ExpectLoadsOf16Bytes(assembly->ptx);
  ExpectNoSpillsInHotLoops(assembly->report, 64, std::regex("^Sortition|ReadTiles|WeighChunk"), 6);
}

TEST(CudaAssembly, OfChainIsWhatItIsMeantToBe) {
  const std::optional<Assembly> assembly = AssemblyOf("chain");
  if (!assembly) GTEST_SKIP() << kNoAssembly;
  ExpectFloatingPointOfLogprobsAlone(assembly->ptx);
  ExpectNoSpillsInHotLoops(assembly->report, 128, std::regex("SumKept"), 1);
}

}  // namespace
}  // namespace sortition::kernels::cuda
