// The order of messages, by the scenario's kind and options.
#include "tests/costs/script.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/memory/region_table.h"
#include "tests/support/messages.h"

namespace sortition::costs {
namespace {

Request Attach(service::Engine* engine, Messages* messages) {
  auto connection = engine->regions().Connect([] {});
  return messages->Attach(std::get<std::shared_ptr<service::MemoryConnection>>(std::move(connection)));
}

}  // namespace

std::optional<Request> Script::Prepare(const Scenario& scenario, service::Engine* engine, Messages* messages) {
  SORTITION_CHECK(scenario.kind != Kind::kSample);
  const Request hello = messages->Hello();
  if (scenario.kind == Kind::kHello) return hello;
  if (!Send(hello, false)) return std::nullopt;
  switch (scenario.kind) {
    case Kind::kOpen:
      return messages->Open("s0", 1);
    case Kind::kLastPiece:
      return PrepareLastPiece(*messages);
    case Kind::kUploadMask:
      return messages->Upload();
    case Kind::kReleaseMask: {
      Request release = messages->Upload();
      if (!Send(release, false)) return std::nullopt;
      release.clear_payloads();
      release.mutable_upload_mask()->clear_mask();
      return release;
    }
    case Kind::kAttachMemory:
      return Attach(engine, messages);
    case Kind::kBringAnswer:
      return PrepareBrought(scenario, *messages);
    default:
      if (!OpenAll(scenario, messages)) return std::nullopt;
  }
  switch (scenario.kind) {
    case Kind::kReopen:
      return messages->Open("s0", 2, false);
    case Kind::kFork:
      return messages->Fork("child");
    case Kind::kClose:
      return messages->Close();
    default:
      break;
  }
  if (scenario.Has("mask.uploaded_mask_id") && !Send(messages->Upload(), false)) return std::nullopt;
  if (scenario.Has("region") && !Send(Attach(engine, messages), false)) return std::nullopt;
  if (scenario.Has("checkpoint")) {
    if (!Send(messages->Step(1, true), false)) return std::nullopt;
    for (const v1::StreamResponse& answer : answers_) messages->NoteDrawn(answer.results());
  }
  if (scenario.is_sharded()) return PrepareLastShard(scenario, messages);
  if (scenario.kind == Kind::kRetry && !Send(messages->Step(10), false)) return std::nullopt;
  return messages->Step(11);
}

std::optional<Request> Script::PrepareBrought(const Scenario& scenario, const Messages& messages) {
  const uint32_t count = messages.brought();
  if (WordOf(scenario.seed, "asks") % 2 == 0) {
    for (uint32_t row = 0; row < count; ++row) {
      if (!Send(messages.BringAnswer(row), false)) return std::nullopt;
    }
    return messages.Brought(1, 1, count);
  }
  for (uint32_t index = 1; index <= count; ++index) {
    if (!Send(messages.Brought(index, index, 1), true)) return std::nullopt;
  }
  return messages.BringAnswer(0);
}

std::optional<Request> Script::PrepareLastShard(const Scenario& scenario, Messages* messages) {
  constexpr uint64_t kFirst = 10;  // the batch of shard 0
  const Request first = messages->Shard(kFirst);
  const auto send = [&](uint32_t index) {
    return Send(index == 0 ? first : messages->OtherShard(kFirst + index, index, first), true);
  };
  if (scenario.kind == Kind::kCancel) return send(0) ? std::make_optional(testing::MakeCancel(kFirst)) : std::nullopt;
  const uint32_t last = WordOf(scenario.seed, "last shard") % 2 == 0 ? 0 : messages->shards() - 1;
  for (uint32_t index = 0; index < messages->shards(); ++index) {
    if (index != last && !send(index)) return std::nullopt;
  }
  return last == 0 ? first : messages->OtherShard(kFirst + last, last, first);
}

bool Script::OpenAll(const Scenario& scenario, Messages* messages) {
  for (uint32_t row = 0; row < messages->rows(); ++row) {
    const std::string id = absl::StrCat("s", row);
    const bool forks = row > 0 && scenario.is_stateful();
    if (!Send(forks ? messages->Fork(id) : messages->Open(id, 1), false)) return false;
    for (const v1::StreamResponse& answer : answers_) {
      if (answer.opened().has_state()) messages->NotePlace(answer.opened().state());
    }
  }
  return true;
}

std::optional<Request> Script::PrepareLastPiece(const Messages& messages) {
  Request first = messages.Open("s0", 1);
  const int half = first.open().history().tokens_size() / 2;
  if (half == 0) return first;
  Request last = first;
  first.mutable_open()->mutable_history()->mutable_tokens()->Truncate(half);
  first.mutable_open()->mutable_history()->set_continues(true);
  if (!Send(first, false)) return std::nullopt;
  auto& tokens = *last.mutable_open()->mutable_history()->mutable_tokens();
  tokens.erase(tokens.begin(), tokens.begin() + half);
  last.mutable_open()->mutable_history()->set_offset(static_cast<uint32_t>(half));
  return last;
}

std::vector<const v1::Error*> ErrorsOf(const v1::StreamResponse& answer) {
  std::vector<const v1::Error*> errors;
  if (answer.opened().has_error()) errors.push_back(&answer.opened().error());
  if (answer.forked().has_error()) errors.push_back(&answer.forked().error());
  if (answer.closed().has_error()) errors.push_back(&answer.closed().error());
  if (answer.mask_uploaded().has_error()) errors.push_back(&answer.mask_uploaded().error());
  if (answer.has_rejected()) errors.push_back(&answer.rejected().error());
  if (answer.results().has_error()) errors.push_back(&answer.results().error());
  for (const v1::RowResult& row : answer.results().rows()) {
    if (row.has_error()) errors.push_back(&row.error());
  }
  return errors;
}

}  // namespace sortition::costs
