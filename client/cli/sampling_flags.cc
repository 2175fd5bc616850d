// Flags of rows and texts, and their meaning.
#include "client/cli/sampling_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "client/receipts/row_file.h"
#include "google/protobuf/util/json_util.h"

template <typename T>
using Optional = absl::optional<T>;
using Texts = std::vector<std::string>;

ABSL_FLAG(std::string, dtype, "",
          "sample, bench: element type of rows: f32, f16 or bf16; a .npy file knows its own; of bench bf16");
ABSL_FLAG(Optional<uint32_t>, vocabulary, absl::nullopt,
          "sample, bench: elements of a row; of sample checked if given, of bench 128256");
ABSL_FLAG(Optional<uint32_t>, live_vocabulary, absl::nullopt, "sample, bench: ids at or above are never drawn");
ABSL_FLAG(Optional<uint64_t>, seed, absl::nullopt,
          "sample, bench: seed; the server draws one if absent; of bench the first text's");
ABSL_FLAG(Texts, prompt, {}, "sample, bench: token ids of the prompt, by commas; where penalties look");
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  ABSL_FLAG(Optional<type>, name, absl::nullopt, "sample, bench: " text);
#define LAW_FLAG(name, phase, text) ABSL_FLAG(Optional<bool>, name, absl::nullopt, "sample, bench: " text);
#define LAW_PART(name, part, member, type, value, form, low, high) \
  ABSL_FLAG(Optional<type>, member, absl::nullopt, "sample, bench: " #part " of " #name);
#define HISTORY_NUMBER(name, value, form, low, high, text) \
  ABSL_FLAG(Optional<uint32_t>, name, absl::nullopt, "sample, bench: " text);
#define HISTORY_PART(name, part, type, value, form, low, high, effect) \
  ABSL_FLAG(Optional<type>, name##_##part, absl::nullopt, "sample, bench: " #part " of " #name);
#include "kernels/law/options.inc"
ABSL_FLAG(Texts, bias, {}, "sample, bench: TOKEN:BIAS pairs, by commas");
ABSL_FLAG(Texts, allow, {}, "sample, bench: only these token ids can be drawn, by commas");
ABSL_FLAG(Texts, ban, {}, "sample, bench: these token ids cannot be drawn, by commas");
ABSL_FLAG(Optional<uint32_t>, logprobs, absl::nullopt, "sample, bench: log probabilities, with this many alternatives");
ABSL_FLAG(bool, raw, false, "sample, bench: of the row as it is (the default with --logprobs)");
ABSL_FLAG(bool, processed, false, "sample, bench: of the tokens that passed every filter");
ABSL_FLAG(std::string, parameters, "",
          "sample, bench: JSON file of parameters, with the names of the wire contract; flags override it");

namespace sortition::cli {
namespace {

absl::Status AddBiases(v1::SamplingParameters* parameters) {
  for (const std::string& pair : absl::GetFlag(FLAGS_bias)) {
    const std::vector<std::string> parts = absl::StrSplit(pair, ':');
    uint32_t token;
    float bias;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &token) || !absl::SimpleAtof(parts[1], &bias)) {
      return absl::InvalidArgumentError(absl::StrCat("--bias: ", pair, " is no TOKEN:BIAS"));
    }
    v1::LogitBias& entry = *parameters->add_logit_bias();
    entry.set_token(token);
    entry.set_bias(bias);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::SamplingParameters> Parameters() {
  v1::SamplingParameters parameters;
  if (const std::string path = absl::GetFlag(FLAGS_parameters); !path.empty()) {
    const auto text = client::ReadBytes(path);
    if (!text.ok()) return text.status();
    const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &parameters);
    if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(parsed.message())));
  }
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  if (const auto given = absl::GetFlag(FLAGS_##name)) parameters.set_##name(*given);
#define LAW_FLAG(name, phase, text) \
  if (const auto given = absl::GetFlag(FLAGS_##name)) parameters.set_##name(*given);
#define LAW_PART(name, part, member, type, value, form, low, high) \
  if (const auto given = absl::GetFlag(FLAGS_##member)) parameters.mutable_##name()->set_##part(*given);
#define HISTORY_NUMBER(name, value, form, low, high, text) \
  if (const auto given = absl::GetFlag(FLAGS_##name)) parameters.set_##name(*given);
#define HISTORY_PART(name, part, type, value, form, low, high, effect) \
  if (const auto given = absl::GetFlag(FLAGS_##name##_##part)) parameters.mutable_##name()->set_##part(*given);
#include "kernels/law/options.inc"
  if (absl::Status status = AddBiases(&parameters); !status.ok()) return status;
  const auto allowed = ParseTokens("allow", absl::GetFlag(FLAGS_allow));
  if (!allowed.ok()) return allowed.status();
  if (!allowed->empty()) parameters.mutable_allowed_token_ids()->Assign(allowed->begin(), allowed->end());
  const auto banned = ParseTokens("ban", absl::GetFlag(FLAGS_ban));
  if (!banned.ok()) return banned.status();
  if (!banned->empty()) parameters.mutable_banned_token_ids()->Assign(banned->begin(), banned->end());

  const bool processed = absl::GetFlag(FLAGS_processed);
  const auto top = absl::GetFlag(FLAGS_logprobs);
  if (!top && (processed || absl::GetFlag(FLAGS_raw)))
    return absl::InvalidArgumentError("--raw and --processed need --logprobs=N");
  if (top && (absl::GetFlag(FLAGS_raw) || !processed)) parameters.mutable_raw_logprobs()->set_top(*top);
  if (top && processed) parameters.mutable_processed_logprobs()->set_top(*top);
  return parameters;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseTokens(const std::string& flag, const std::vector<std::string>& texts) {
  std::vector<uint32_t> tokens;
  for (const std::string& text : texts) {
    if (!absl::SimpleAtoi(text, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", text, " is no token id"));
    }
  }
  return tokens;
}

absl::StatusOr<RowFlags> GetRowFlags() {
  RowFlags flags;
  if (const std::string text = absl::GetFlag(FLAGS_dtype); !text.empty()) {
    const auto parsed = client::ParseDType(text);
    if (!parsed.ok()) return parsed.status();
    flags.dtype = *parsed;
  }
  if (const auto given = absl::GetFlag(FLAGS_vocabulary)) flags.vocabulary = *given;
  return flags;
}

absl::StatusOr<client::SequenceOptions> GetTextFlags(uint32_t vocabulary) {
  client::SequenceOptions options;
  options.vocabulary_size = vocabulary;
  if (const auto live = absl::GetFlag(FLAGS_live_vocabulary)) options.live_vocabulary_size = *live;
  if (const auto seed = absl::GetFlag(FLAGS_seed)) options.seed = *seed;
  auto prompt = ParseTokens("prompt", absl::GetFlag(FLAGS_prompt));
  if (!prompt.ok()) return prompt.status();
  options.prompt = *std::move(prompt);
  auto parameters = Parameters();
  if (!parameters.ok()) return parameters.status();
  options.parameters = *std::move(parameters);
  return options;
}

}  // namespace sortition::cli
