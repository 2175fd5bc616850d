// Files that the build of the CUDA kernels leaves.
#include "tests/ptx/modules.h"

#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>

namespace sortition::testing::ptx {

std::string ModuleText(std::string_view name) {
  const std::string path = SORTITION_PTX + std::string(name) + "_" SORTITION_PTX_ARCHITECTURE ".ptx";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const Program& Module(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, Program, std::less<>> programs;
  const std::lock_guard lock(mutex);
  const auto found = programs.find(name);
  if (found != programs.end()) return found->second;
  return programs.emplace(name, Parse(ModuleText(name))).first->second;
}

}  // namespace sortition::testing::ptx
