// The CPU kernels for AArch64 against the reference, as a program that needs neither a test library nor Highway's.
#include <cstdio>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"

int main() {
  using namespace sortition;
  kernels::cpu::Scratch scratch;
  const kernels::cpu::Target* const neon = kernels::cpu::FindTarget("neon");
  if (neon == nullptr) {
    std::puts("no target \"neon\"");
    return 1;
  }
  uint32_t compared = 0;
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    kernels::RowRequest request = law::MakeRequest(row, tensor);
    for (uint32_t position = 0; position < 20; ++position, ++compared) {
      request.noise.position += position;
      kernels::RowOutput answer;
      kernels::cpu::SampleRow(*neon, request, &scratch, &answer);
      if (answer == law::SampleRowReference(request)) continue;
      std::printf("%s, position %u: not the reference's answer\n", row.name.c_str(), request.noise.position);
      return 1;
    }
  }
  std::printf("neon: %u answers equal the reference's\n", compared);
  return compared == 0 ? 1 : 0;
}
