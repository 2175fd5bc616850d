// The compiled CUDA kernels: PTX has floating point only for logprobs, and machine code spills no register in hot
// loops.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/image.h"

namespace sortition::kernels::cuda::ptx_test {
namespace {

// The build's output from a source for one compute capability.
struct Assembly {
  std::string architecture;
  std::map<std::string, std::string> functions;  // PTX, by name
  std::string report;                            // the assembler's
};

#ifdef SORTITION_CUDA_ASSEMBLY

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::map<std::string, std::string> FunctionsOf(const std::string& ptx) {
  std::map<std::string, std::string> functions;
  std::string name;
  bool is_body = false;
  const std::regex declaration(R"(^(?:\.visible |\.weak )?\.(?:entry|func)(?:\s*\([^)]*\))?\s+(\w+))");
  std::istringstream lines(ptx);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, declaration)) name = match[1];
    if (line == "{") is_body = true;
    if (is_body) functions[name] += line + "\n";
    if (line == "}") is_body = false;
  }
  return functions;
}

// Returns the output from kernels/cuda/`name`.cu for every capability that the build makes machine code for.
std::vector<Assembly> AssembliesOf(const std::string& name) {
  std::vector<Assembly> assemblies;
  std::istringstream architectures(SORTITION_CUDA_ARCHITECTURES);
  for (std::string architecture; architectures >> architecture;) {
    const std::string path = SORTITION_CUDA_ASSEMBLY + name + "_";
    // Later capabilities have the PTX of 9.0.
    const std::string ptx = Contents(path + (std::stoi(architecture) < 90 ? "80" : "90") + ".ptx");
    assemblies.push_back({architecture, FunctionsOf(ptx), Contents(path + architecture + ".txt")});
  }
  return assemblies;
}

#else

std::vector<Assembly> AssembliesOf(const std::string&) { return {}; }

#endif

constexpr char kNoAssembly[] = "this build has no CUDA kernels (nvcc)";

// Every instruction on floating point, with how it rounds.
std::set<std::string> FloatingPointOf(const std::string& ptx) {
  std::set<std::string> seen;
  const std::regex instruction(R"(^\s*(?:@%p\d+ )?([a-z][a-z0-9_.:]*\.b?f(?:16|32|64)[a-z0-9.]*)\s)");
  std::istringstream lines(ptx);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_search(line, match, instruction)) continue;
    const std::string name = match[1];
    const bool moves = name.rfind("ld.", 0) == 0 || name.rfind("st.", 0) == 0 || name.rfind("mov.", 0) == 0;
    if (!moves && name.rfind(".reg", 0) != 0) seen.insert(name);
  }
  return seen;
}

// IEEE double operations rounded once and conversions, all of Logprob (logprob.cuh); exact operations on numbers: f16
// to f32, and cleared or turned signs; and in functions that match `scales`, a scaling by a power of two that is cut to
// an integer (weigher.cuh). No fused multiply-add, no approximation, no flushing of denormals. Returns how many
// functions have any of Logprob.
int ExpectFloatingPointOfLogprobsAlone(const Assembly& assembly, const std::regex& scales) {
  const std::set<std::string> logprob = {"sub.rn.f64",     "mul.rn.f64",     "div.rn.f64",     "cvt.f64.f32",
                                         "cvt.rn.f32.f64", "cvt.rn.f64.s64", "cvt.rn.f64.u64", "cvt.rn.f64.u32",
                                         "selp.f64",       "cvt.f32.f16",    "abs.f32",        "neg.f32"};
  const std::set<std::string> scaling = {"mul.rn.f32", "cvt.rzi.s32.f32", "setp.ge.f32", "selp.f32", "cvt.f32.f16"};
  int logprobs = 0;
  for (const auto& [function, ptx] : assembly.functions) {
    const bool is_scaling = std::regex_search(function, scales);
    const std::set<std::string> seen = FloatingPointOf(ptx);
    for (const std::string& name : seen) {
      EXPECT_TRUE((is_scaling ? scaling : logprob).contains(name)) << function << ": " << name;
    }
    logprobs += seen.contains("div.rn.f64");
    EXPECT_EQ(seen.contains("cvt.rzi.s32.f32"), is_scaling) << function;
  }
  return logprobs;
}

// Loads of 16 bytes in each of the `functions` whose names match: for each type of elements, whole tiles take eight at
// once, and so does a row's end.
void ExpectLoadsOf16Bytes(const Assembly& assembly, const std::regex& names, int functions, int each) {
  int met = 0;
  for (const auto& [function, ptx] : assembly.functions) {
    if (!std::regex_search(function, names)) continue;
    ++met;
    int loads = 0;
    for (size_t at = 0; (at = ptx.find("ld.global.nc.v4.", at)) != std::string::npos; ++at) ++loads;
    EXPECT_GE(loads, each) << function;
  }
  EXPECT_EQ(met, functions);
}

// Reads the assembler's report of spills by function: there are none in the `functions` whose names match `hot`.
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
    EXPECT_LE(bytes, 700) << name;
  }
  EXPECT_EQ(met, functions) << report;
}

// Drivers take PTX and machine code of their version of CUDA or older ones, and before 570 images without compression.
TEST(CudaAssembly, OldDriversLoadImages) {
#ifdef SORTITION_CUDA_ASSEMBLY
  for (const char* const source : {"sample", "chain", "sequence"}) {
    const std::string image = Contents(SORTITION_CUDA_ASSEMBLY + std::string(source) + ".fatbin");
    EXPECT_NE(image.find(".version 8.0\n"), std::string::npos) << source;
    std::istringstream architectures(SORTITION_CUDA_ARCHITECTURES);
    for (std::string architecture; architectures >> architecture;) {
      const std::string code = Contents(SORTITION_CUDA_ASSEMBLY + std::string(source) + "_" + architecture + ".cubin");
      EXPECT_NE(image.find(code), std::string::npos) << architecture;
      // The first byte names the ABI, the next one its version. Drivers for later capabilities know newer ones.
      ASSERT_GT(code.size(), 9u);
      const std::string abi = kernels::cuda::LeastDriver() == 525 ? "\x33\x07" : "\x41\x08";
      if (std::stoi(architecture) > 90) continue;
      EXPECT_EQ(code.substr(7, 2), abi) << architecture;
    }
  }
#else
  GTEST_SKIP() << kNoAssembly;
#endif
}

TEST(CudaAssembly, SampleKernelMeetsExpectations) {
  const std::vector<Assembly> assemblies = AssembliesOf("sample");
  if (assemblies.empty()) GTEST_SKIP() << kNoAssembly;
  const std::regex reads("ReadTiles");
  const std::regex weighs("WeighSection");
  for (const Assembly& assembly : assemblies) {
    SCOPED_TRACE(assembly.architecture);
    EXPECT_GE(ExpectFloatingPointOfLogprobsAlone(assembly, weighs), 2);
    ExpectLoadsOf16Bytes(assembly, reads, 3, 16);
    ExpectLoadsOf16Bytes(assembly, weighs, 1, 12);
    ExpectNoSpillsInHotLoops(assembly.report, 64, std::regex("^Sortition|ReadTiles|WeighSection"), 6);
  }
}

TEST(CudaAssembly, ChainKernelMeetsExpectations) {
  const std::vector<Assembly> assemblies = AssembliesOf("chain");
  if (assemblies.empty()) GTEST_SKIP() << kNoAssembly;
  for (const Assembly& assembly : assemblies) {
    SCOPED_TRACE(assembly.architecture);
    EXPECT_GE(ExpectFloatingPointOfLogprobsAlone(assembly, std::regex("a^")), 1);
    ExpectNoSpillsInHotLoops(assembly.report, 128, std::regex("SumKept"), 1);
  }
}

TEST(CudaAssembly, SequenceKernelMeetsExpectations) {
  const std::vector<Assembly> assemblies = AssembliesOf("sequence");
  if (assemblies.empty()) GTEST_SKIP() << kNoAssembly;
  for (const Assembly& assembly : assemblies) {
    SCOPED_TRACE(assembly.architecture);
    // A penalty, as the host computes it: each operation is rounded once.
    const std::set<std::string> penalty = {"mul.rn.f64",     "sub.rn.f64",     "add.rn.f64",    "neg.f64",
                                           "cvt.rn.f64.s64", "cvt.rn.f64.u32", "cvt.rn.f32.f64"};
    for (const auto& [function, ptx] : assembly.functions) {
      for (const std::string& name : FloatingPointOf(ptx)) EXPECT_TRUE(penalty.contains(name)) << name;
    }
    ExpectNoSpillsInHotLoops(assembly.report, 64, std::regex("^SortitionAdvance"), 1);
  }
}

}  // namespace
}  // namespace sortition::kernels::cuda::ptx_test
