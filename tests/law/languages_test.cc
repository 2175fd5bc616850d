// The law's text compiles as GLSL and as CUDA, to code without floating point.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sortition::law::languages_test {
namespace {

// Set by CMake, as are SORTITION_GLSLC, SORTITION_SPIRV_DIS and SORTITION_NVCC: paths of tools. The last two are empty
// where not installed.
const std::string kRoot = SORTITION_SOURCE_DIR;

// Runs a command and puts its output into `*output`. True if it succeeded.
bool RunCommand(const std::string& command, std::string* output) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return false;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output->append(buffer, n);
  return pclose(pipe) == 0;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Every function of the text, by name.
std::vector<std::string> FunctionNames() {
  std::vector<std::string> names;
  for (const char* file :
       {"u64_pair", "bits", "soft_float", "changes", "distance", "weight", "log2", "noise", "race", "moments",
        "cutoffs", "sigma", "temperature", "smoothing", "mirostat", "adaptive", "shape", "stage"}) {
    std::istringstream lines(ReadFile(kRoot + "/kernels/law/functions/" + file + ".inc"));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word, type, name;
      words >> word >> type >> name;
      if (word == "LAW_FUNCTION") names.push_back(name.substr(0, name.find('(')));
    }
  }
  return names;
}

// The instruction on a line of disassembled SPIR-V; empty if there is none.
std::string Opcode(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.starts_with("Op")) return word;
  }
  return "";
}

// Also conversions: the text has none between kinds of numbers.
bool IsFloatingPoint(const std::string& opcode) {
  return opcode == "OpTypeFloat" || opcode.starts_with("OpConvert") ||
         (opcode.starts_with("OpF") && !opcode.starts_with("OpFunction"));
}

TEST(Languages, GlslHasNoFloatingPointAndNo64BitIntegers) {
  if (std::string(SORTITION_SPIRV_DIS).empty()) GTEST_SKIP() << "spirv-dis is not installed";
  const std::string binary = ::testing::TempDir() + "every_function.spv";
  std::string output;
  ASSERT_TRUE(RunCommand(absl::StrCat(SORTITION_GLSLC, " -g --target-env=vulkan1.1 -I ", kRoot, " ", kRoot,
                                      "/tests/law/every_function.comp -o ", binary),
                         &output))
      << output;
  std::string assembly;
  ASSERT_TRUE(RunCommand(absl::StrCat(SORTITION_SPIRV_DIS, " --raw-id ", binary), &assembly)) << assembly;
  std::remove(binary.c_str());

  int multiplications = 0;
  std::istringstream lines(assembly);
  for (std::string line; std::getline(lines, line);) {
    const std::string opcode = Opcode(line);
    EXPECT_FALSE(IsFloatingPoint(opcode)) << line;
    EXPECT_FALSE(opcode == "OpTypeInt" && Contains(line, "OpTypeInt 64")) << line;
    multiplications += opcode == "OpUMulExtended" || opcode == "OpSMulExtended" || opcode == "OpIMul";
  }
  EXPECT_GE(multiplications, 4) << "the disassembly was not understood";
  ASSERT_GE(FunctionNames().size(), 40u);
  for (const std::string& name : FunctionNames()) EXPECT_TRUE(Contains(assembly, '"' + name + '(')) << name;
}

TEST(Languages, CudaHasNoFloatingPoint) {
  if (std::string(SORTITION_NVCC).empty()) GTEST_SKIP() << "nvcc is not installed";
  const std::string ptx = ::testing::TempDir() + "every_function.ptx";
  std::string output;
  ASSERT_TRUE(RunCommand(
      absl::StrCat(SORTITION_NVCC, " -ptx -std=c++17 -I ", kRoot, " ", kRoot, "/tests/law/every_function.cu -o ", ptx),
      &output))
      << output;
  const std::string assembly = ReadFile(ptx);
  std::remove(ptx.c_str());
  for (const char* type : {".f16", ".f32", ".f64", ".bf16"}) EXPECT_FALSE(Contains(assembly, type)) << type;
  EXPECT_TRUE(Contains(assembly, "mul.hi.u32")) << "the assembly was not understood";
}

}  // namespace
}  // namespace sortition::law::languages_test
