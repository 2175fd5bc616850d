// sortitionctl sample: draws one token from a row in a file.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "client/cli/command.h"
#include "client/cli/row_file.h"
#include "sortition/client.h"

template <typename T>
using Optional = absl::optional<T>;
using Texts = std::vector<std::string>;

ABSL_FLAG(std::string, dtype, "", "sample: element type of the row: f32, f16 or bf16; a .npy file knows its own");
ABSL_FLAG(Optional<uint32_t>, vocabulary, absl::nullopt, "sample: elements of the row; checked if given");
ABSL_FLAG(Optional<uint32_t>, live_vocabulary, absl::nullopt, "sample: ids at or above are never drawn");
ABSL_FLAG(Optional<uint64_t>, seed, absl::nullopt, "sample: seed; the server draws one if absent");
ABSL_FLAG(uint32_t, choice_index, 0, "sample: which of n parallel completions");
ABSL_FLAG(Optional<uint32_t>, position, absl::nullopt,
          "sample: tokens before the one to draw; for rows without penalties");
ABSL_FLAG(uint32_t, draw_salt, 0, "sample: another draw at the same position");
ABSL_FLAG(Texts, prompt, {}, "sample: token ids of the prompt, by commas; where penalties look");
ABSL_FLAG(Texts, output, {}, "sample: token ids drawn after the prompt, by commas; where penalties look");
ABSL_FLAG(Optional<float>, temperature, absl::nullopt, "sample: 0 = greedy");
ABSL_FLAG(Optional<uint32_t>, top_k, absl::nullopt, "sample: keep the first k tokens");
ABSL_FLAG(Optional<float>, top_p, absl::nullopt, "sample: keep the shortest ordered prefix of this mass");
ABSL_FLAG(Optional<float>, min_p, absl::nullopt,
          "sample: keep tokens of at least this share of the first one's probability");
ABSL_FLAG(Optional<float>, repetition_penalty, absl::nullopt, "sample: factor for tokens of prompt and output");
ABSL_FLAG(Optional<float>, frequency_penalty, absl::nullopt, "sample: subtracted for each occurrence in the output");
ABSL_FLAG(Optional<float>, presence_penalty, absl::nullopt, "sample: subtracted for tokens in the output");
ABSL_FLAG(Texts, bias, {}, "sample: TOKEN:BIAS pairs, by commas");
ABSL_FLAG(Texts, allow, {}, "sample: only these token ids can be drawn, by commas");
ABSL_FLAG(Texts, ban, {}, "sample: these token ids cannot be drawn, by commas");
ABSL_FLAG(Optional<uint32_t>, logprobs, absl::nullopt, "sample: log probabilities, with this many alternatives");
ABSL_FLAG(bool, raw, false, "sample: of the row as it is (the default with --logprobs)");
ABSL_FLAG(bool, processed, false, "sample: of the tokens that passed every filter");

namespace sortition::cli {
namespace {

absl::StatusOr<std::vector<uint32_t>> Tokens(const absl::Flag<Texts>& flag) {
  std::vector<uint32_t> tokens;
  for (const std::string& text : absl::GetFlag(flag)) {
    if (!absl::SimpleAtoi(text, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), ": ", text, " is no token id"));
    }
  }
  return tokens;
}

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
  if (const auto value = absl::GetFlag(FLAGS_temperature)) parameters.set_temperature(*value);
  if (const auto value = absl::GetFlag(FLAGS_top_k)) parameters.set_top_k(*value);
  if (const auto value = absl::GetFlag(FLAGS_top_p)) parameters.set_top_p(*value);
  if (const auto value = absl::GetFlag(FLAGS_min_p)) parameters.set_min_p(*value);
  if (const auto value = absl::GetFlag(FLAGS_repetition_penalty)) parameters.set_repetition_penalty(*value);
  if (const auto value = absl::GetFlag(FLAGS_frequency_penalty)) parameters.set_frequency_penalty(*value);
  if (const auto value = absl::GetFlag(FLAGS_presence_penalty)) parameters.set_presence_penalty(*value);
  if (absl::Status status = AddBiases(&parameters); !status.ok()) return status;
  const auto allowed = Tokens(FLAGS_allow);
  if (!allowed.ok()) return allowed.status();
  parameters.mutable_allowed_token_ids()->Assign(allowed->begin(), allowed->end());
  const auto banned = Tokens(FLAGS_ban);
  if (!banned.ok()) return banned.status();
  parameters.mutable_banned_token_ids()->Assign(banned->begin(), banned->end());

  const bool processed = absl::GetFlag(FLAGS_processed);
  const auto top = absl::GetFlag(FLAGS_logprobs);
  if (!top && (processed || absl::GetFlag(FLAGS_raw)))
    return absl::InvalidArgumentError("--raw and --processed need --logprobs=N");
  if (top && (absl::GetFlag(FLAGS_raw) || !processed)) parameters.mutable_raw_logprobs()->set_top(*top);
  if (top && processed) parameters.mutable_processed_logprobs()->set_top(*top);
  return parameters;
}

absl::StatusOr<client::SequenceOptions> Options(uint32_t vocabulary) {
  client::SequenceOptions options;
  options.request_id = "sortitionctl";
  options.vocabulary_size = vocabulary;
  options.choice_index = absl::GetFlag(FLAGS_choice_index);
  if (const auto live = absl::GetFlag(FLAGS_live_vocabulary)) options.live_vocabulary_size = *live;
  if (const auto seed = absl::GetFlag(FLAGS_seed)) options.seed = *seed;
  if (const auto position = absl::GetFlag(FLAGS_position)) options.start_position = *position;
  auto prompt = Tokens(FLAGS_prompt);
  if (!prompt.ok()) return prompt.status();
  options.prompt = *std::move(prompt);
  auto parameters = Parameters();
  if (!parameters.ok()) return parameters.status();
  options.parameters = *std::move(parameters);
  return options;
}

void PrintLogprobs(const char* kind, const v1::Logprobs& logprobs) {
  std::printf("%-10s logprob %.6f  rank %u\n", kind, logprobs.logprob(), logprobs.rank());
  for (int i = 0; i < logprobs.top_tokens_size(); ++i) {
    std::printf("  %8u  %12.6f\n", logprobs.top_tokens(i), logprobs.top_logprobs(i));
  }
}

void Print(const v1::DrawResult& draw, uint64_t seed, uint32_t position) {
  if (WantsJson()) {
    // 64-bit integers are strings in the JSON form of protobuf.
    std::printf("{\"seed\": \"%llu\", \"position\": %u, \"draw\": %s}\n", static_cast<unsigned long long>(seed),
                position, std::string(absl::StripSuffix(ToJson(draw, /*one_line=*/true), "\n")).c_str());
    return;
  }
  std::printf("token      %u\n", draw.token());
  std::printf("seed       %llu  position %u\n", static_cast<unsigned long long>(seed), position);
  if (draw.has_raw()) PrintLogprobs("raw", draw.raw());
  if (draw.has_processed()) PrintLogprobs("processed", draw.processed());
}

absl::StatusOr<RowFile> ReadRow(const std::string& path) {
  std::optional<v1::DType> dtype;
  if (const std::string text = absl::GetFlag(FLAGS_dtype); !text.empty()) {
    const auto parsed = ParseDType(text);
    if (!parsed.ok()) return parsed.status();
    dtype = *parsed;
  }
  std::optional<uint32_t> vocabulary;
  if (const auto given = absl::GetFlag(FLAGS_vocabulary)) vocabulary = *given;
  auto bytes = ReadBytes(path);
  if (!bytes.ok()) return bytes.status();
  return ParseRow(*std::move(bytes), dtype, vocabulary);
}

}  // namespace

Outcome Sample(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1)
    return Fail(absl::InvalidArgumentError("sample needs one argument: a file with a row, or - for stdin"));
  const auto row = ReadRow(arguments[0]);
  if (!row.ok()) return Fail(row.status());
  auto options = Options(row->vocabulary);
  if (!options.ok()) return Fail(options.status());
  const auto output = Tokens(FLAGS_output);
  if (!output.ok()) return Fail(output.status());
  const auto client = Connect();
  if (!client.ok()) return Fail(client.status());
  const auto sequence = (*client)->Open(*std::move(options));
  if (!sequence.ok()) return Fail(sequence.status());
  if (absl::Status status = (*sequence)->Append(*output); !status.ok()) return Fail(status);
  const uint32_t position = (*sequence)->position();
  const auto outcomes = (*client)->Step(
      {row->dtype, row->vocabulary, {{sequence->get(), row->bytes.data(), absl::GetFlag(FLAGS_draw_salt)}}});
  if (!outcomes.ok()) return Fail(outcomes.status());
  if (const auto* error = std::get_if<client::RowError>(&outcomes->front())) return Fail(client::ToStatus(*error));
  Print(std::get<v1::DrawResult>(outcomes->front()), (*sequence)->seed(), position);
  return Outcome::kDone;
}

}  // namespace sortition::cli
