// Implements llama_sampler_i with a Decoder.
#include "client/engines/llama_cpp/sampler.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace sortition::engines::llama_cpp {
namespace {

struct Context {
  std::unique_ptr<Decoder> decoder;
  std::vector<float> row;
  absl::Status last_error;
  absl::Status accept_error;  // holds until a reset
};

Context& ContextOf(const llama_sampler* sampler) { return *static_cast<Context*>(sampler->ctx); }

const char* Name(const llama_sampler*) { return "sortition"; }

void Accept(llama_sampler* sampler, llama_token token) {
  Context& context = ContextOf(sampler);
  context.accept_error.Update(context.decoder->Accept(static_cast<uint32_t>(token)));
  context.last_error = context.accept_error;
}

absl::StatusOr<v1::DrawResult> DrawRow(Context* context, const float* logits) {
  context->last_error = context->accept_error;
  if (!context->last_error.ok()) return context->last_error;
  auto drawn = context->decoder->Draw(logits, static_cast<uint32_t>(context->row.size()));
  context->last_error = drawn.status();
  return drawn;
}

// Makes a row of the candidates. A token that an earlier sampler has dropped gets -Inf.
void GatherRow(const llama_token_data_array& candidates, std::vector<float>* row) {
  if (candidates.size < row->size()) std::fill(row->begin(), row->end(), -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < candidates.size; ++i) {
    const llama_token_data& candidate = candidates.data[i];
    SORTITION_CHECK(candidate.id >= 0 && static_cast<size_t>(candidate.id) < row->size());
    (*row)[static_cast<size_t>(candidate.id)] = candidate.logit;
  }
}

void Apply(llama_sampler* sampler, llama_token_data_array* candidates) {
  Context& context = ContextOf(sampler);
  GatherRow(*candidates, &context.row);
  const auto drawn = DrawRow(&context, context.row.data());
  candidates->selected = -1;
  if (!drawn.ok()) return;
  for (size_t i = 0; i < candidates->size; ++i) {
    if (candidates->data[i].id == static_cast<llama_token>(drawn->token())) {
      candidates->selected = static_cast<int64_t>(i);
      return;
    }
  }
}

void Reset(llama_sampler* sampler) {
  Context& context = ContextOf(sampler);
  context.decoder->Reset();
  context.last_error = context.accept_error = absl::OkStatus();
}

llama_sampler* Clone(const llama_sampler* sampler) {
  const Context& context = ContextOf(sampler);
  llama_sampler* const clone = InitSampler(context.decoder->Clone(), static_cast<uint32_t>(context.row.size()));
  ContextOf(clone).accept_error = context.accept_error;
  return clone;
}

void Free(llama_sampler* sampler) { delete &ContextOf(sampler); }

llama_sampler_i* Interface() {
  static llama_sampler_i interface = {
      .name = Name, .accept = Accept, .apply = Apply, .reset = Reset, .clone = Clone, .free = Free};
  return &interface;
}

}  // namespace

llama_sampler* InitSampler(std::unique_ptr<Decoder> decoder, uint32_t vocabulary_size) {
  return llama_sampler_init(Interface(), new Context{std::move(decoder), std::vector<float>(vocabulary_size), {}, {}});
}

absl::StatusOr<v1::DrawResult> Draw(llama_sampler* sampler, const float* logits) {
  return DrawRow(&ContextOf(sampler), logits);
}

void DrawAhead(std::span<const NextRow> rows) {
  if (rows.empty()) return;
  std::vector<Decoder::NextRow> next;
  for (const NextRow& row : rows) {
    Context& context = ContextOf(row.sampler);
    if (context.accept_error.ok()) next.push_back({context.decoder.get(), row.logits, row.drafts});
  }
  Decoder::DrawAhead(next, static_cast<uint32_t>(ContextOf(rows[0].sampler).row.size()));
}

absl::StatusOr<v1::DrawResult> Sample(llama_sampler* sampler, llama_context* context, int32_t index) {
  const float* logits = llama_get_logits_ith(context, index);
  if (logits == nullptr) return absl::InvalidArgumentError("the context has no logits for this output");
  auto drawn = Draw(sampler, logits);
  if (!drawn.ok()) return drawn.status();
  Accept(sampler, static_cast<llama_token>(drawn->token()));
  if (!LastError(sampler).ok()) return LastError(sampler);
  return drawn;
}

const absl::Status& LastError(const llama_sampler* sampler) { return ContextOf(sampler).last_error; }

}  // namespace sortition::engines::llama_cpp
