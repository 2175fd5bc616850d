// sortitionctl replay: runs a recorded rollout against a server and compares.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "client/cli/command.h"
#include "client/cli/receipt_check.h"
#include "client/cli/row_file.h"
#include "sortition/client.h"

using Texts = std::vector<std::string>;
ABSL_DECLARE_FLAG(std::string, seeds);
ABSL_DECLARE_FLAG(std::string, logits);
ABSL_DECLARE_FLAG(std::string, chain);
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(Texts, prompt);

namespace sortition::cli {
namespace {

constexpr int kShownDifferences = 20;

// The receipts of one sequence.
struct Rollout {
  std::string id;
  CheckedChain chain;
  std::vector<service::Receipt> receipts;
};

absl::StatusOr<Rollout> ReadRollout(const std::string& path) {
  const auto text = ReadBytes(absl::GetFlag(FLAGS_seeds));
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--seeds: ", text.status().message()));
  const auto seeds = ParseSeeds(*text);
  if (!seeds.ok()) return absl::InvalidArgumentError(absl::StrCat("--seeds: ", seeds.status().message()));
  const auto bytes = ReadBytes(path);
  if (!bytes.ok()) return bytes.status();
  Rollout rollout{absl::GetFlag(FLAGS_chain), {}, {}};
  ReceiptCheck check(
      {{}, *seeds, false, [&](const std::string& id, const CheckedChain& chain, const service::Receipt& receipt) {
         if (rollout.id.empty()) rollout.id = id;
         if (id != rollout.id) return;
         rollout.chain = chain;
         rollout.receipts.push_back(receipt);
       }});
  check.Read(*bytes);
  check.Finish();
  for (const Problem& problem : check.problems()) {
    if (problem.name == "cut_record" || problem.name == "bad_record") {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", problem.name, ": ", problem.detail));
    }
  }
  if (rollout.receipts.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, " has no receipts of the sequence"));
  if (rollout.chain.spec == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the law or a parameter of the sequence is unknown here"));
  }
  if (!rollout.chain.seed) return absl::InvalidArgumentError("--seeds: opens no seed of the sequence");
  if (rollout.chain.has_watermark) {
    return absl::InvalidArgumentError("a watermark's key is in no receipt, so its text cannot be replayed");
  }
  return rollout;
}

absl::StatusOr<client::SequenceOptions> OptionsOf(const Rollout& rollout) {
  client::SequenceOptions options;
  options.request_id = "sortitionctl";
  options.parameters = rollout.chain.parameters;
  options.parameters.mutable_processed_logprobs();
  options.parameters.mutable_kept_set()->set_tokens(true);
  options.seed = *rollout.chain.seed;
  options.choice_index = rollout.chain.spec->choice_index;
  options.vocabulary_size = rollout.chain.spec->vocabulary;
  options.live_vocabulary_size = rollout.chain.spec->live_vocabulary;
  for (const std::string& token : absl::GetFlag(FLAGS_prompt)) {
    if (!absl::SimpleAtoi(token, &options.prompt.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--prompt: ", token, " is no token id"));
    }
  }
  if (options.prompt.empty() && !rollout.chain.spec->stateful()) {
    options.start_position = rollout.receipts.front().position;
  }
  return options;
}

// Returns how the server's draw differs from the receipt; empty if it does not.
std::string DifferenceOf(const service::Receipt& receipt, const v1::DrawResult& draw) {
  if (draw.token() != receipt.token)
    return absl::StrCat("token ", receipt.token, " is recorded, ", draw.token(), " drawn");
  if (std::bit_cast<uint32_t>(draw.processed().logprob()) != receipt.logprob_bits) return "another logprob";
  if (!receipt.lists_kept) return "";
  const auto is_same = [](const kernels::TokenBits& kept, uint32_t token) { return kept.token == token; };
  return std::ranges::equal(receipt.kept, draw.kept_tokens(), is_same) ? "" : "other tokens are kept";
}

}  // namespace

Outcome Replay(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 || absl::GetFlag(FLAGS_logits).empty() || absl::GetFlag(FLAGS_seeds).empty()) {
    return Fail(absl::InvalidArgumentError("replay takes one file of receipts, --logits and --seeds"));
  }
  const auto rollout = ReadRollout(arguments[0]);
  if (!rollout.ok()) return Fail(rollout.status());
  std::optional<v1::DType> dtype;
  if (const std::string text = absl::GetFlag(FLAGS_dtype); !text.empty()) {
    const auto parsed = ParseDType(text);
    if (!parsed.ok()) return Fail(parsed.status());
    dtype = *parsed;
  }
  const uint32_t vocabulary = rollout->chain.spec->vocabulary;
  auto matrix = RowMatrix::Open(absl::GetFlag(FLAGS_logits), dtype, vocabulary);
  if (!matrix.ok()) return Fail(absl::InvalidArgumentError(absl::StrCat("--logits: ", matrix.status().message())));
  if (matrix->rows() < rollout->receipts.size()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("--logits: has ", matrix->rows(), " rows for ", rollout->receipts.size(), " receipts")));
  }
  auto options = OptionsOf(*rollout);
  if (!options.ok()) return Fail(options.status());
  const auto client = Connect();
  if (!client.ok()) return Fail(client.status());
  const auto sequence = (*client)->Open(*std::move(options));
  if (!sequence.ok()) return Fail(sequence.status());

  uint64_t differences = 0, drafts = 0;
  std::string row;
  for (size_t i = 0; i < rollout->receipts.size(); ++i) {
    const service::Receipt& receipt = rollout->receipts[i];
    if (absl::Status status = matrix->Read(i, &row); !status.ok()) return Fail(status);
    if (receipt.position > (*sequence)->position()) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("receipt ", receipt.index, ": tokens before position ", receipt.position, " are missing")));
    }
    if (absl::Status status = (*sequence)->Truncate(receipt.position); !status.ok()) return Fail(status);
    const auto results =
        (*client)->Step({matrix->dtype(), vocabulary, {{sequence->get(), row.data(), receipt.draw_salt}}});
    if (!results.ok()) return Fail(results.status());
    if (const auto* error = std::get_if<client::RowError>(&results->front())) return Fail(client::ToStatus(*error));
    const auto& draw = std::get<v1::DrawResult>(results->front());
    const bool draws =
        receipt.method == service::ReceiptMethod::kRace || receipt.method == service::ReceiptMethod::kGreedy;
    const std::string difference = draws ? DifferenceOf(receipt, draw) : "";
    drafts += draws ? 0 : 1;
    if (!difference.empty() && differences++ < kShownDifferences) {
      std::printf("position %u: %s\n", receipt.position, difference.c_str());
    }
    if (draw.token() == receipt.token) continue;
    if (absl::Status status = (*sequence)->ReplaceLast(receipt.token); !status.ok()) return Fail(status);
  }
  const char* const form = WantsJson() ? "{\"tokens\": %zu, \"differences\": %llu, \"not_compared\": %llu}\n"
                                       : "%zu tokens replayed, %llu differ, %llu not compared: drafts decided them\n";
  std::printf(form, rollout->receipts.size(), static_cast<unsigned long long>(differences),
              static_cast<unsigned long long>(drafts));
  return differences == 0 ? Outcome::kDone : Outcome::kDiffers;
}

}  // namespace sortition::cli
