// Answers rows of standard input by the kernels of the target that is the argument, on standard output: the other end
// of tests/conformance/piped_device.h. Needs no library, so a static program of another architecture is small.
#include <sys/utsname.h>

#include <cstdio>
#include <string>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/version.h"
#include "tests/conformance/row_wire.h"

int main(int argc, char** argv) {
  using namespace sortition;
  const kernels::cpu::Target* const target = argc == 2 ? kernels::cpu::FindTarget(argv[1]) : nullptr;
  if (target == nullptr) {
    std::fprintf(stderr, "answers: no target \"%s\"\n", argc == 2 ? argv[1] : "");
    return 1;
  }
  utsname system = {};
  uname(&system);
  const std::string name = std::string("law ") + std::to_string(law::kLawVersion) + ", " + system.machine + ", ";
  if (!testing::WriteMessage(STDOUT_FILENO, name + argv[1])) return 1;
  kernels::cpu::Scratch scratch;
  kernels::RowOutput output;
  for (std::string message; testing::ReadMessage(STDIN_FILENO, &message);) {
    const auto row = testing::FromBytes<testing::WireRow>(message);
    if (!row) {
      std::fprintf(stderr, "answers: no row\n");
      return 1;
    }
    kernels::cpu::SampleRow(*target, RequestOf(*row), &scratch, &output);
    if (!testing::WriteMessage(STDOUT_FILENO, testing::ToBytes(output))) return 1;
  }
  return 0;
}
