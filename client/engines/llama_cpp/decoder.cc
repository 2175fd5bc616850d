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
  if (!drawn_.empty()) {  // but not accepted
    const uint32_t position = static_cast<uint32_t>(accepted_.size());
    absl::Status status = RewriteSequence([&](auto& sequence) { return sequence.Truncate(position); });
    if (!status.ok()) return status;
    drawn_.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::DrawResult> Decoder::Drawn(absl::StatusOr<v1::DrawResult> result) {
  if (result.ok()) drawn_.push_back(result->token());
  return result;
}

absl::StatusOr<v1::DrawResult> Decoder::Draw(const float* logits, uint32_t vocabulary_size) {
  if (!ahead_.empty()) {
    Ahead next = std::move(ahead_.front());
    ahead_.pop_front();
    // The tokens before it are accepted if the ones that are not are those of the next rows.
    if (next.row == logits && (!next.result.ok() || drawn_.size() == ahead_.size() + 1)) return std::move(next.result);
    ahead_.clear();
  }
  if (absl::Status status = Prepare(vocabulary_size); !status.ok()) return status;
  return Drawn(Step(logits, vocabulary_size));
}

void Decoder::TakeAhead(const NextRow& row, uint32_t vocabulary_size, absl::StatusOr<client::RowResult> result) {
  const auto* const verified = result.ok() ? std::get_if<v1::VerifyResult>(&*result) : nullptr;
  if (verified != nullptr) {
    const float* logits = row.logits;
    for (const v1::Position& position : verified->positions()) {
      v1::DrawResult drawn;
      drawn.set_token(position.token());
      ahead_.push_back({std::exchange(logits, logits + vocabulary_size), Drawn(std::move(drawn))});
    }
  } else if (row.drafts.empty()) {
    ahead_.push_back({row.logits, Drawn(result.ok() ? DrawOf(*std::move(result)) : result.status())});
  }  // else each row is drawn when it is asked for: the bad one may be after the last accepted draft
}

void Decoder::DrawAhead(std::span<const NextRow> rows, uint32_t vocabulary_size) {
  client::Batch batch{v1::DTYPE_F32, vocabulary_size, {}};
  std::vector<const NextRow*> stepped;
  std::vector<client::Drafts> drafts(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    Decoder& decoder = *rows[i].decoder;
    decoder.ahead_.clear();
    if (decoder.client_ == nullptr) continue;
    if (absl::Status status = decoder.Prepare(vocabulary_size); !status.ok()) {
      decoder.TakeAhead(rows[i], vocabulary_size, std::move(status));
      continue;
    }
    client::Row& row = batch.rows.emplace_back(client::Row{decoder.remote_.get(), rows[i].logits});
    if (!rows[i].drafts.empty()) {
      drafts[i].tokens = rows[i].drafts;
      row.drafts = &drafts[i];
    }
    stepped.push_back(&rows[i]);
  }
  if (stepped.empty()) return;
  auto results = stepped[0]->decoder->client_->Step(batch);
  for (size_t i = 0; i < stepped.size(); ++i) {
    using Result = absl::StatusOr<client::RowResult>;
    stepped[i]->decoder->TakeAhead(*stepped[i], vocabulary_size,
                                   results.ok() ? Result(std::move((*results)[i])) : Result(results.status()));
  }
}

absl::Status Decoder::Accept(uint32_t token) {
  absl::Status status;
  if (!drawn_.empty() && drawn_.front() == token) {
    drawn_.pop_front();
  } else {
    ahead_.clear();
    if (drawn_.size() == 1) {
      status = RewriteSequence([&](auto& sequence) { return sequence.ReplaceLast(token); });
    } else {
      const auto position = static_cast<uint32_t>(accepted_.size());
      status = RewriteSequence([&](auto& sequence) {
        absl::Status cut = drawn_.empty() ? absl::OkStatus() : sequence.Truncate(position);
        return cut.ok() ? sequence.Append({&token, 1}) : cut;
      });
    }
    if (!status.ok()) return status;
    drawn_.clear();
  }
  accepted_.push_back(token);
  return status;
}

void Decoder::Reset() {
  remote_.reset();
  local_.reset();
  drawn_.clear();
  ahead_.clear();
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
