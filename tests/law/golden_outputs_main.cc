// law_golden_outputs: prints the contents of kernels/law/vectors/golden_outputs.json.
#include <cstdio>

#include "kernels/law/golden/golden_outputs.h"

int main() {
  const std::string json = sortition::law::GoldenOutputsJson();
  return std::fwrite(json.data(), 1, json.size(), stdout) == json.size() ? 0 : 1;
}
