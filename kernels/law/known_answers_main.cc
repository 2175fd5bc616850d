// law_known_answers: prints the contents of kernels/law/known_answers.json.
#include <cstdio>

#include "kernels/law/known_answers.h"

int main() {
  const std::string json = sortition::law::KnownAnswersJson();
  return std::fwrite(json.data(), 1, json.size(), stdout) == json.size() ? 0 : 1;
}
