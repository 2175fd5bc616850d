// sortitionctl replay: runs a recorded rollout against a server and compares.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "client/cli/command.h"
#include "client/receipts/receipt_check.h"
#include "client/receipts/receipt_file.h"
#include "client/receipts/receipt_masks.h"
#include "client/receipts/row_file.h"
#include "sortition/client.h"

using Texts = std::vector<std::string>;
ABSL_DECLARE_FLAG(std::string, seeds);
ABSL_DECLARE_FLAG(std::string, logits);
ABSL_DECLARE_FLAG(std::string, masks);
ABSL_DECLARE_FLAG(std::string, chain);
ABSL_DECLARE_FLAG(std::string, dtype);
ABSL_DECLARE_FLAG(Texts, prompt);

namespace sortition::cli {
namespace {

constexpr int kShownDifferences = 20;

// Returns how the server's draw differs from the receipt; empty if it does not.
std::string DifferenceOf(const service::Receipt& receipt, const v1::DrawResult& draw) {
  if (draw.token() != receipt.token)
    return absl::StrCat("token ", receipt.token, " is recorded, ", draw.token(), " drawn");
  if (std::bit_cast<uint32_t>(draw.processed().logprob()) != receipt.logprob_bits) return "another logprob";
  if (!receipt.lists_kept) return "";
  const auto is_same = [](const kernels::TokenBits& kept, uint32_t token) { return kept.token == token; };
  return std::ranges::equal(receipt.kept, draw.kept_tokens(), is_same) ? "" : "other tokens are kept";
}

// Draws the tokens of one sequence again, receipt by receipt. Holds no receipts.
class Replayer {
 public:
  explicit Replayer(std::string chain) : chain_(std::move(chain)) {}

  // Takes a receipt of any sequence. Blocks for a step of the server.
  void Take(const std::string& id, const client::CheckedChain& chain, const service::Receipt& receipt) {
    if (!status_.ok()) return;
    if (chain_.empty()) chain_ = id;
    if (id != chain_) return;
    if (sequence_ == nullptr) status_ = Begin(chain, receipt);
    if (status_.ok()) status_ = Draw(receipt);
    ++receipts_;
  }

  const absl::Status& status() const { return status_; }
  uint64_t receipts() const { return receipts_; }
  uint64_t differences() const { return differences_; }
  uint64_t not_compared() const { return not_compared_; }

 private:
  absl::Status Begin(const client::CheckedChain& chain, const service::Receipt& first);
  absl::Status Draw(const service::Receipt& receipt);

  std::string chain_;  // id in hexadecimal; empty: the first receipt's
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Sequence> sequence_;
  std::optional<client::RowMatrix> matrix_;
  client::ReceiptMasks masks_;
  uint32_t vocabulary_ = 0;
  std::string row_;
  std::vector<uint32_t> mask_;
  uint64_t receipts_ = 0;
  uint64_t differences_ = 0;
  uint64_t not_compared_ = 0;  // drafts decided the token, or the step had another mask than those given
  absl::Status status_;
};

absl::Status Replayer::Begin(const client::CheckedChain& chain, const service::Receipt& first) {
  if (chain.spec == nullptr) {
    return absl::InvalidArgumentError("the law or a parameter of the sequence is unknown here");
  }
  if (!chain.seed) return absl::InvalidArgumentError("--seeds: opens no seed of the sequence");
  if (chain.has_watermark) {
    return absl::InvalidArgumentError("a watermark's key is in no receipt, so its text cannot be replayed");
  }
  std::optional<v1::DType> dtype;
  if (const std::string text = absl::GetFlag(FLAGS_dtype); !text.empty()) {
    const auto parsed = client::ParseDType(text);
    if (!parsed.ok()) return parsed.status();
    dtype = *parsed;
  }
  vocabulary_ = chain.spec->vocabulary;
  auto matrix = client::RowMatrix::Open(absl::GetFlag(FLAGS_logits), dtype, vocabulary_);
  if (!matrix.ok()) return absl::InvalidArgumentError(absl::StrCat("--logits: ", matrix.status().message()));
  matrix_ = *std::move(matrix);
  if (const std::string path = absl::GetFlag(FLAGS_masks); !path.empty()) {
    auto masks = client::ReceiptMasks::Open(path, *chain.spec);
    if (!masks.ok()) return masks.status();
    masks_ = *std::move(masks);
  }

  client::SequenceOptions options;
  options.request_id = "sortitionctl";
  options.parameters = *chain.parameters;
  options.parameters.mutable_processed_logprobs();
  options.parameters.mutable_kept_set()->set_tokens(true);
  // Rewinds changed the draws by salts and masks, which the receipts have.
  options.parameters.clear_banned_phrases();
  options.seed = *chain.seed;
  options.choice_index = chain.spec->choice_index;
  options.vocabulary_size = vocabulary_;
  options.live_vocabulary_size = chain.spec->live_vocabulary;
  for (const std::string& token : absl::GetFlag(FLAGS_prompt)) {
    if (!absl::SimpleAtoi(token, &options.prompt.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--prompt: ", token, " is no token id"));
    }
  }
  if (options.prompt.empty() && !chain.spec->stateful()) options.start_position = first.position;
  auto connected = Connect();
  if (!connected.ok()) return connected.status();
  client_ = *std::move(connected);
  auto opened = client_->Open(std::move(options));
  if (!opened.ok()) return opened.status();
  sequence_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status Replayer::Draw(const service::Receipt& receipt) {
  if (receipts_ == matrix_->rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logits: has ", matrix_->rows(), " rows, and there are more receipts"));
  }
  if (absl::Status status = matrix_->Read(receipts_, &row_); !status.ok()) return status;
  if (receipt.position > sequence_->position()) {
    return absl::InvalidArgumentError(
        absl::StrCat("receipt ", receipt.index, ": tokens before position ", receipt.position, " are missing"));
  }
  if (absl::Status status = sequence_->Truncate(receipt.position); !status.ok()) return status;
  const absl::Status found = masks_.Find(receipt, &mask_);
  if (!found.ok() && !absl::IsNotFound(found)) return found;
  client::Row row = {sequence_.get(), row_.data(), receipt.draw_salt};
  if (!mask_.empty()) row.allowed_bits = mask_.data();
  const auto results = client_->Step({matrix_->dtype(), vocabulary_, {row}});
  if (!results.ok()) return results.status();
  if (const auto* error = std::get_if<client::RowError>(&results->front())) return client::ToStatus(*error);
  const auto& draw = std::get<v1::DrawResult>(results->front());
  const bool draws = found.ok() && (receipt.method == service::ReceiptMethod::kRace ||
                                    receipt.method == service::ReceiptMethod::kGreedy);
  const std::string difference = draws ? DifferenceOf(receipt, draw) : "";
  not_compared_ += draws ? 0 : 1;
  if (!difference.empty() && differences_++ < kShownDifferences) {
    std::printf("position %u: %s\n", receipt.position, difference.c_str());
  }
  return draw.token() == receipt.token ? absl::OkStatus() : sequence_->ReplaceLast(receipt.token);
}

}  // namespace

Outcome Replay(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1 || absl::GetFlag(FLAGS_logits).empty() || absl::GetFlag(FLAGS_seeds).empty()) {
    return Fail(absl::InvalidArgumentError("replay takes one file of receipts, --logits and --seeds"));
  }
  auto seeds = client::ReadSeeds(absl::GetFlag(FLAGS_seeds));
  if (!seeds.ok()) return Fail(seeds.status());
  Replayer replayer(absl::GetFlag(FLAGS_chain));
  client::ReceiptCheck check({{},
                              *std::move(seeds),
                              [&](const std::string& id, const client::CheckedChain& chain,
                                  const service::Receipt& receipt) { replayer.Take(id, chain, receipt); }});
  const std::string& path = arguments[0];
  if (absl::Status read = client::ReadReceipts(path, &check, [&] { return replayer.status().ok(); }); !read.ok()) {
    return Fail(read);
  }
  if (!replayer.status().ok()) return Fail(replayer.status());
  for (const client::ReceiptProblem& problem : check.problems()) {
    if (problem.name == "cut_record" || problem.name == "bad_record") {
      return Fail(absl::InvalidArgumentError(absl::StrCat(path, ": ", problem.name, ": ", problem.detail)));
    }
  }
  if (replayer.receipts() == 0) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(path, " has no receipts of the sequence")));
  }
  const char* const form = WantsJson()
                               ? "{\"tokens\": %llu, \"differences\": %llu, \"not_compared\": %llu}\n"
                               : "%llu tokens replayed, %llu differ, %llu not compared: with drafts or other masks\n";
  std::printf(form, static_cast<unsigned long long>(replayer.receipts()),
              static_cast<unsigned long long>(replayer.differences()),
              static_cast<unsigned long long>(replayer.not_compared()));
  return replayer.differences() == 0 ? Outcome::kDone : Outcome::kDiffers;
}

}  // namespace sortition::cli
