// Prints which tokens the law's reference keeps of rows, as a service would ask it. Each line of standard input holds
// an OpenSequence as JSON, the row's logits as f32 bits in hexadecimal, and the tokens that earlier steps of the same
// row drew, with tabs between; of each it makes a line: a JSON object of kept tokens and their logprobs.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "service/entropy.h"
#include "service/text/text.h"
#include "service/wire/open_request.h"

namespace sortition::service {
namespace {

// The state of a sampler that keeps one, after `drawn`.
uint64_t StateAfter(const std::vector<uint32_t>& drawn, kernels::RowRequest request) {
  request.sampler_state = kernels::InitialSamplerState(request.parameters->chain);
  request.task = kernels::RowTask::kScore;
  for (const uint32_t token : drawn) {
    request.given = token;
    request.sampler_state = law::SampleRowReference(request).sampler_state;
  }
  return request.sampler_state;
}

bool Print(const OpenRequest& open, const std::vector<uint32_t>& logits, const std::vector<uint32_t>& drawn) {
  kernels::RowParameters parameters = open.spec->parameters;
  parameters.processed_logprob = true;
  parameters.kept_tokens = true;
  kernels::RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  request.noise = {1, 1, 0};
  std::shared_ptr<Text> state;
  if (open.spec->stateful()) {
    state = Text::Build(open.spec, open.history->tokens, open.history->prompt_length, /*kept_history=*/64);
    request.edits = *state->LendEdits();
  }
  request.sampler_state = StateAfter(drawn, request);
  const kernels::RowOutput answer = law::SampleRowReference(request);
  if (answer.error != kernels::RowFault::kNone) return false;
  const double temperature = law::ProcessedTemperature(parameters, answer);
  const char* separator = "{";
  for (const auto& [token, bits] : answer.kept_tokens) {
    std::printf("%s\"%u\": %.9g", separator, token, double{law::Logprob(answer.processed, bits, temperature)});
    separator = ", ";
  }
  std::printf("}\n");
  return true;
}

bool Answer(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  v1::OpenSequence open;
  if (fields.size() != 3 || !google::protobuf::util::JsonStringToMessage(fields[0], &open).ok()) return false;
  SystemEntropy entropy;
  // The service refuses a history that no option looks at. Every case has one.
  v1::OpenSequence bare = open;
  bare.clear_history();
  auto parsed = ParseOpen(bare, Limits(), "open", &entropy);
  const auto* const judged = std::get_if<OpenRequest>(&parsed);
  if (judged == nullptr || judged->spec->stateful()) parsed = ParseOpen(open, Limits(), "open", &entropy);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    std::fprintf(stderr, "%s: %s\n", refusal->field.c_str(), refusal->message.c_str());
    return false;
  }
  std::vector<uint32_t> logits;
  for (const absl::string_view word : absl::StrSplit(fields[1], ' ')) {
    if (!absl::SimpleHexAtoi(word, &logits.emplace_back())) return false;
  }
  std::vector<uint32_t> drawn;
  for (const absl::string_view word : absl::StrSplit(fields[2], ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &drawn.emplace_back())) return false;
  }
  return Print(std::get<OpenRequest>(parsed), logits, drawn);
}

}  // namespace
}  // namespace sortition::service

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    if (!sortition::service::Answer(line)) {
      std::fprintf(stderr, "no answer to %.200s\n", line.c_str());
      return 1;
    }
  }
  return 0;
}
