// sortitionctl sample: draws one token from a row in a file.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "client/cli/command.h"
#include "client/cli/sampling_flags.h"
#include "client/receipts/row_file.h"
#include "sortition/client.h"

using Texts = std::vector<std::string>;

ABSL_FLAG(uint32_t, choice_index, 0, "sample: which of n parallel completions");
ABSL_FLAG(absl::optional<uint32_t>, position, absl::nullopt,
          "sample: tokens before the one to draw; for rows without penalties");
ABSL_FLAG(uint32_t, draw_salt, 0, "sample: another draw at the same position");
ABSL_FLAG(Texts, output, {}, "sample: token ids drawn after the prompt, by commas; where penalties look");

namespace sortition::cli {
namespace {

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

absl::StatusOr<client::RowFile> ReadRow(const std::string& path) {
  const auto flags = GetRowFlags();
  if (!flags.ok()) return flags.status();
  auto bytes = client::ReadBytes(path);
  if (!bytes.ok()) return bytes.status();
  return client::ParseRow(*std::move(bytes), flags->dtype, flags->vocabulary);
}

}  // namespace

Outcome Sample(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1)
    return Fail(absl::InvalidArgumentError("sample needs one argument: a file with a row, or - for stdin"));
  const auto row = ReadRow(arguments[0]);
  if (!row.ok()) return Fail(row.status());
  auto options = GetTextFlags(row->vocabulary);
  if (!options.ok()) return Fail(options.status());
  options->request_id = "sortitionctl";
  options->choice_index = absl::GetFlag(FLAGS_choice_index);
  if (const auto position = absl::GetFlag(FLAGS_position)) options->start_position = *position;
  const auto output = ParseTokens("output", absl::GetFlag(FLAGS_output));
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
