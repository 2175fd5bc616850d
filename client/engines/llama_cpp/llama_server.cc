// libsortition_llama_server: samplers for llama-server, through the service or in its process, by SORTITION_LLAMA.
#include "client/engines/llama_cpp/llama_server.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/engines/llama_cpp/llama_options.h"
#include "client/engines/llama_cpp/sampler.h"
#include "kernels/cpu/target.h"
#include "kernels/law/version.h"
#include "service/version.h"
#include "sortition/errors.h"
#include "sortition/in_process.h"
#include "sortition/local_sequence.h"

namespace sortition::engines::llama_cpp {
namespace {

constexpr char kInProcess[] = "in_process";

// Returns the process's client, null if the setting names no target. It lives as long as the process, because samplers
// of any thread use it.
absl::StatusOr<client::Client*> TheClient() {
  static const auto* const made = new absl::StatusOr<client::Client*>([]() -> absl::StatusOr<client::Client*> {
    const char* const setting = std::getenv("SORTITION_LLAMA");
    client::ClientOptions options;
    options.name = "sortition-llama-server";
    for (const absl::string_view part :
         absl::StrSplit(setting != nullptr ? setting : "", ',', absl::SkipWhitespace())) {
      const std::string target(absl::StripAsciiWhitespace(part));
      if (target == kInProcess) {
        options.in_process = client::InProcessEngine();
      } else {
        options.targets.push_back(target);
      }
    }
    if (options.targets.empty()) return nullptr;
    auto client = client::Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    return client->release();
  }());
  return *made;
}

SamplingOptions ToOptions(const sortition_llama_options& from) {
  SamplingOptions to;
  to.top_k = from.top_k;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.typ_p = from.typ_p;
  to.top_n_sigma = from.top_n_sigma;
  to.temp = from.temp;
  to.dynatemp_range = from.dynatemp_range;
  to.dynatemp_exponent = from.dynatemp_exponent;
  to.xtc_probability = from.xtc_probability;
  to.xtc_threshold = from.xtc_threshold;
  to.penalty_last_n = from.penalty_last_n;
  to.penalty_repeat = from.penalty_repeat;
  to.penalty_freq = from.penalty_freq;
  to.penalty_present = from.penalty_present;
  to.mirostat = from.mirostat;
  to.mirostat_tau = from.mirostat_tau;
  to.mirostat_eta = from.mirostat_eta;
  to.adaptive_target = from.adaptive_target;
  to.adaptive_decay = from.adaptive_decay;
  to.min_keep = from.min_keep;
  to.samplers.emplace(from.samplers, from.samplers + from.sampler_count);
  for (size_t i = 0; i < from.bias_count; ++i) to.logit_bias.push_back({from.biases[i].token, from.biases[i].bias});
  return to;
}

std::string ToText(const absl::Status& status) {
  const auto error = client::ErrorOf(status);
  return error ? client::Describe(*error) : std::string(status.message());
}

absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoder(const sortition_llama_options& from, uint32_t vocabulary_size) {
  auto parameters = ToParameters(ToOptions(from));
  if (!parameters.ok()) return parameters.status();
  client::SequenceOptions options;
  options.parameters = *std::move(parameters);
  if (from.has_seed != 0) options.seed = from.seed;
  // Judges the options as a server would, before the request is admitted.
  client::SequenceOptions checked = options;
  checked.request_id = "check";
  checked.vocabulary_size = vocabulary_size;
  if (const auto opened = client::LocalSequence::Open(checked); !opened.ok()) return opened.status();
  const auto client = TheClient();
  if (!client.ok()) return client.status();
  return std::make_unique<Decoder>(*client, std::move(options));
}

llama_sampler* Make(const sortition_llama_options* options, uint32_t vocabulary_size, char* error, size_t error_size) {
  auto decoder = MakeDecoder(*options, vocabulary_size);
  if (decoder.ok()) return InitSampler(*std::move(decoder), vocabulary_size);
  std::snprintf(error, error_size, "%s", ToText(decoder.status()).c_str());
  return nullptr;
}

int32_t DrawToken(llama_sampler* sampler, const float* logits) {
  const auto drawn = Draw(sampler, logits);
  return drawn.ok() ? static_cast<int32_t>(drawn->token()) : -1;
}

void DrawTokensAhead(const sortition_llama_row* rows, size_t count) {
  std::vector<NextRow> next;
  for (const sortition_llama_row& row : std::span(rows, count)) {
    // Drafts below 0 are too large ones then, which the law refuses.
    next.push_back({row.sampler, row.logits, {reinterpret_cast<const uint32_t*>(row.drafts), row.draft_count}});
  }
  DrawAhead(next);
}

const char* ErrorText(const llama_sampler* sampler) {
  thread_local std::string text;
  text = LastError(sampler).ok() ? "" : ToText(LastError(sampler));
  return text.c_str();
}

const char* Where() {
  thread_local std::string text;
  thread_local bool was_here = false;
  const auto client = TheClient();
  const bool here = !client.ok() || *client == nullptr || (*client)->in_process();
  if (!text.empty() && here == was_here) return text.c_str();
  was_here = here;
  text = absl::StrCat("Sortition ", std::string(service::Version()), ", law ", law::kLawVersion, ". Tokens are drawn ");
  if (here) {
    absl::StrAppend(&text, "in process, by the CPU kernels ", std::string(kernels::cpu::BestTarget().name));
  } else {
    const bool ring = (*client)->transport_in_use().kind == client::TransportKind::kRing;
    absl::StrAppend(&text, "by the service over ", ring ? "ring" : "grpc");
  }
  return text.c_str();
}

}  // namespace
}  // namespace sortition::engines::llama_cpp

const sortition_llama_functions* sortition_llama(uint32_t version) {
  namespace here = sortition::engines::llama_cpp;
  static constexpr sortition_llama_functions functions = {here::Make, here::DrawToken, here::DrawTokensAhead,
                                                          here::ErrorText, here::Where};
  return version == SORTITION_LLAMA_VERSION ? &functions : nullptr;
}
