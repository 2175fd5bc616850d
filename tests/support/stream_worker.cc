// Messages that a worker sends and awaits.
#include "tests/support/stream_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "service/wire/encode_result.h"
#include "service/wire/frame.h"

namespace sortition::testing {

StreamWorker::StreamWorker(service::Engine* engine, const Options& options)
    : random_(options.seed), session_(std::make_unique<service::Session>(engine, options.tenant, sink_)) {
  if (!options.greets) return;
  Send(Hello(options.worker_session));
  EXPECT_TRUE(Await([](const auto& message) { return message.has_welcome(); }).has_value());
}

void StreamWorker::Begin(const v1::StreamRequest& message) {
  const Delivery delivery = Deliver(message.SerializeAsString());
  session_->BeginFrame(std::get<service::Frame>(service::DecodeFrame(delivery.segments, delivery.bytes)));
}

void StreamWorker::SendBytes(std::string bytes) {
  const Delivery delivery = DeliverInPieces(std::move(bytes), &random_);
  auto decoded = service::DecodeFrame(delivery.segments, delivery.bytes);
  if (const auto* refusal = std::get_if<service::Refusal>(&decoded)) return session_->OnRejectedFrame(*refusal);
  session_->OnFrame(std::move(std::get<service::Frame>(decoded)));
}

std::optional<v1::StreamResponse> StreamWorker::Await(const RecordingSink::Wanted& wanted) {
  std::optional<v1::StreamResponse> message = sink_->Await(wanted);
  EXPECT_TRUE(message.has_value()) << "the answer has not come";
  return message;
}

v1::SequenceOpened StreamWorker::Open(const v1::OpenSequence& open) {
  Send(Message(open));
  std::string receipts;
  for (;;) {
    auto response = Await([&](const v1::StreamResponse& message) {
      return message.has_opened() && message.opened().request_id() == open.request_id();
    });
    if (!response || !response->opened().has_state()) return response ? response->opened() : v1::SequenceOpened();
    v1::OpenedState& state = *response->mutable_opened()->mutable_state();
    receipts += state.receipts();
    if (state.continues()) continue;
    state.set_receipts(receipts);
    return response->opened();
  }
}

v1::OpenedState StreamWorker::MustOpen(const v1::OpenSequence& open) {
  const v1::SequenceOpened opened = Open(open);
  EXPECT_TRUE(opened.has_state()) << opened.error().ShortDebugString();
  return opened.state();
}

std::vector<v1::RowResult> StreamWorker::Run(const v1::StreamRequest& step) {
  Send(step);
  return Results(step.step().batch_id(), static_cast<size_t>(step.step().rows_size()));
}

v1::RowResult StreamWorker::RunOne(const v1::StreamRequest& step) {
  const std::vector<v1::RowResult> results = Run(step);
  return results.size() == 1 ? results[0] : v1::RowResult();
}

v1::SequenceForked StreamWorker::Fork(const v1::StreamRequest& fork) {
  Send(fork);
  return Await([](const auto& message) { return message.has_forked(); }).value_or(v1::StreamResponse()).forked();
}

v1::SequenceClosed StreamWorker::Close(const v1::StreamRequest& close) {
  Send(close);
  return Await([](const auto& message) { return message.has_closed(); }).value_or(v1::StreamResponse()).closed();
}

std::vector<v1::RowResult> StreamWorker::Results(uint64_t batch_id, size_t rows) {
  std::vector<v1::RowResult> results;
  std::map<uint32_t, v1::RowResult> partial;
  while (results.size() < rows) {
    const auto response = Await([&](const v1::StreamResponse& message) {
      return message.has_results() && message.results().batch_id() == batch_id;
    });
    if (!response) return {};
    EXPECT_FALSE(response->results().has_error()) << response->results().error().ShortDebugString();
    if (response->results().has_error()) return {};
    for (const v1::RowResult& row : response->results().rows()) {
      AppendPart(row, &partial[row.row()]);
      if (!service::Continues(row)) results.push_back(partial[row.row()]);
    }
  }
  std::sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.row() < b.row(); });
  EXPECT_EQ(results.size(), rows);
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].row(), i) << "each row is answered once";
  return results;
}

v1::Error StreamWorker::StepError(uint64_t batch_id) {
  const auto response = Await([&](const v1::StreamResponse& message) {
    return message.has_results() && message.results().batch_id() == batch_id && message.results().has_error();
  });
  return response ? response->results().error() : v1::Error();
}

v1::Rejected StreamWorker::Rejected() {
  const auto response = Await([](const auto& message) { return message.has_rejected(); });
  return response ? response->rejected() : v1::Rejected();
}

void StreamWorker::LetLeave() { sink_->LetLeave(); }

bool StreamWorker::IsIdle() {
  LetLeave();
  return session_->Idle();
}

}  // namespace sortition::testing
