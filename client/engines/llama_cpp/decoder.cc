// Brings the sequence's tokens in line with the accepted ones.
#include "client/engines/llama_cpp/decoder.h"

#include <atomic>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/cpp/sequence_record.h"
#include "service/entropy.h"

namespace sortition::engines::llama_cpp {
namespace {

// Returns a new request id. A client uses each id once at a time, and decoders that are reset or cloned need several.
std::string FreshId(const std::string& prefix) {
  static std::atomic<uint64_t> number{0};
  return absl::StrCat(prefix.empty() ? "llama" : prefix, "-", number.fetch_add(1, std::memory_order_relaxed));
}

absl::Status TakesNothingBack() {
  return absl::InvalidArgumentError(
      "banned_phrases: llama.cpp takes no accepted token back; bad_words bans the last token of each instead");
}

absl::StatusOr<v1::DrawResult> DrawOf(client::RowResult result) {
  if (const auto* error = std::get_if<client::RowError>(&result)) return client::ToStatus(*error);
  return std::get<v1::DrawResult>(std::move(result));
}

}  // namespace

Decoder::Decoder(client::Client* client, client::SequenceOptions options)
    : client_(client), options_(std::move(options)) {
  if (!options_.seed) options_.seed = service::SystemEntropy().Draw();
}

absl::Status Decoder::Open(uint32_t vocabulary_size) {
  if (lacks_sampler_state_) {
    return absl::FailedPreconditionError(
        "a clone does not have the state of mirostat or adaptive_p, which is a sequence's of the service: clone before "
        "the first draw, or sample in process");
  }
  if (options_.parameters.banned_phrases_size() > 0) return TakesNothingBack();
  client::SequenceOptions options = options_;
  options.request_id = FreshId(options_.request_id);
  options.vocabulary_size = vocabulary_size;
  const auto prompt_length = prompt_length_.value_or(static_cast<uint32_t>(accepted_.size()));
  options.prompt.assign(accepted_.begin(), accepted_.begin() + prompt_length);
  const std::span<const uint32_t> output = std::span(accepted_).subspan(prompt_length);
  const auto take = [&](auto opened, auto* sequence) {
    absl::Status status = opened.status();
    if (status.ok()) status = (*opened)->Append(output);
    if (status.ok()) *sequence = *std::move(opened);
    return status;
  };
  const absl::Status status = client_ != nullptr ? take(client_->Open(std::move(options)), &remote_)
                                                 : take(client::LocalSequence::Open(options), &local_);
  if (remote_ != nullptr && remote_->policy().applied().banned_phrases_size() > 0) {
    remote_.reset();
    return TakesNothingBack();
  }
  if (status.ok()) prompt_length_ = prompt_length;
  return status;
}

template <typename Rewrite>
absl::Status Decoder::RewriteSequence(Rewrite rewrite) {
  if (remote_ != nullptr) return rewrite(*remote_);
  if (local_ != nullptr) return rewrite(*local_);
  return absl::OkStatus();
}

absl::StatusOr<v1::DrawResult> Decoder::Step(const float* logits, uint32_t vocabulary_size) {
  client::RowResult result;
  if (local_ != nullptr) {
    if (vocabulary_size != local_->vocabulary_size()) return absl::InvalidArgumentError("the vocabulary has changed");
    result = local_->Step(v1::DTYPE_F32, client::Row{nullptr, logits});
  } else {
    auto results = client_->Step(client::Batch{v1::DTYPE_F32, vocabulary_size, {{remote_.get(), logits}}});
    if (!results.ok()) return results.status();
    result = std::move((*results)[0]);
  }
  return DrawOf(std::move(result));
}

absl::Status Decoder::Prepare(uint32_t vocabulary_size) {
  if (!is_open()) {
    if (absl::Status status = Open(vocabulary_size); !status.ok()) return status;
  }
  if (drawn_) {  // but not accepted
    const uint32_t position = static_cast<uint32_t>(accepted_.size());
    absl::Status status = RewriteSequence([&](auto& sequence) { return sequence.Truncate(position); });
    if (!status.ok()) return status;
    drawn_.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::DrawResult> Decoder::Drawn(absl::StatusOr<v1::DrawResult> result) {
  if (result.ok()) drawn_ = result->token();
  return result;
}

absl::StatusOr<v1::DrawResult> Decoder::Draw(const float* logits, uint32_t vocabulary_size) {
  if (std::optional<Ahead> ahead = std::exchange(ahead_, std::nullopt); ahead && ahead->row == logits) {
    return std::move(ahead->result);
  }
  if (absl::Status status = Prepare(vocabulary_size); !status.ok()) return status;
  return Drawn(Step(logits, vocabulary_size));
}

void Decoder::DrawAhead(std::span<Decoder* const> decoders, std::span<const float* const> rows,
                        uint32_t vocabulary_size) {
  client::Batch batch{v1::DTYPE_F32, vocabulary_size, {}};
  std::vector<size_t> places;
  for (size_t i = 0; i < decoders.size(); ++i) {
    Decoder& decoder = *decoders[i];
    decoder.ahead_.reset();
    if (decoder.client_ == nullptr) continue;
    if (absl::Status status = decoder.Prepare(vocabulary_size); !status.ok()) {
      decoder.ahead_ = Ahead{rows[i], status};
      continue;
    }
    batch.rows.push_back({decoder.remote_.get(), rows[i]});
    places.push_back(i);
  }
  if (places.empty()) return;
  auto results = decoders[places[0]]->client_->Step(batch);
  for (size_t j = 0; j < places.size(); ++j) {
    Decoder& decoder = *decoders[places[j]];
    decoder.ahead_ =
        Ahead{rows[places[j]], decoder.Drawn(results.ok() ? DrawOf(std::move((*results)[j])) : results.status())};
  }
}

absl::Status Decoder::Accept(uint32_t token) {
  ahead_.reset();
  absl::Status status;
  if (!drawn_) {
    status = RewriteSequence([&](auto& sequence) { return sequence.Append({&token, 1}); });
  } else if (*drawn_ != token) {
    status = RewriteSequence([&](auto& sequence) { return sequence.ReplaceLast(token); });
  }
  if (!status.ok()) return status;
  drawn_.reset();
  accepted_.push_back(token);
  return status;
}

void Decoder::Reset() {
  remote_.reset();
  local_.reset();
  drawn_.reset();
  ahead_.reset();
  accepted_.clear();
  prompt_length_.reset();
  lacks_sampler_state_ = false;
}

std::unique_ptr<Decoder> Decoder::Clone() const {
  auto clone = std::make_unique<Decoder>(client_, options_);
  clone->accepted_ = accepted_;
  clone->prompt_length_ = prompt_length_;
  if (local_ != nullptr) {
    clone->drawn_ = drawn_;
    clone->local_ = local_->Clone();
  }
  clone->lacks_sampler_state_ =
      lacks_sampler_state_ || (remote_ != nullptr && client::KeepsSamplerState(options_.parameters));
  return clone;
}

}  // namespace sortition::engines::llama_cpp
