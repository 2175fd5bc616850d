// A StreamState with a fake connector, and a clock that the test moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/state_rows.h"
#include "client/cpp/stream_state.h"
#include "gtest/gtest.h"
#include "kernels/law/version.h"
#include "service/text/history/history_hash.h"
#include "sortition/options.h"
#include "tests/client/fake_transport.h"

namespace sortition::testing {

class StateHarness {
 public:
  static constexpr uint64_t kFirstEpoch = 1000;
  static constexpr uint32_t kVocabulary = 8;

  explicit StateHarness(client::ClientOptions given)
      : StateHarness(std::move(given), std::make_shared<FakeConnector>()) {}
  StateHarness(client::ClientOptions given, std::shared_ptr<FakeConnector> made)
      : options(std::move(given)),
        connector(*made),
        state(options, "worker",
              {std::move(made), nullptr, kFirstEpoch, /*jitter_seed=*/1,
               [this](std::shared_ptr<client::PendingBatch> batch) { Finish(std::move(batch)); }}) {
    state.Start(now);
  }

  // --- the caller

  struct Opened {
    std::shared_ptr<client::SequenceRecord> record;
    std::shared_ptr<absl::Status> status = std::make_shared<absl::Status>(absl::UnknownError("not over"));
    std::shared_ptr<bool> over = std::make_shared<bool>(false);
  };
  Opened Open(client::SequenceOptions sequence) {
    sequence.vocabulary_size = kVocabulary;
    return Open(std::make_shared<client::SequenceRecord>(std::move(sequence)));
  }
  Opened Open(std::shared_ptr<client::SequenceRecord> record) {
    Opened opened{std::move(record)};
    auto open = std::make_unique<client::PendingOpen>();
    open->record = opened.record;
    open->deadline = now + options.default_timeout;
    open->done = [status = opened.status, over = opened.over](absl::Status answer) {
      *status = std::move(answer);
      *over = true;
    };
    state.Open(std::move(open), now);
    Collect();
    return opened;
  }

  // The results of a batch; `times` counts the calls of its callback.
  struct Results {
    int times = 0;
    std::vector<client::RowResult> rows;
  };
  std::shared_ptr<Results> Submit(const std::vector<std::shared_ptr<client::SequenceRecord>>& records,
                                  absl::Duration timeout = absl::Seconds(60),
                                  std::optional<client::ReadyWord> ready = std::nullopt) {
    auto results = std::make_shared<Results>();
    auto batch = std::make_shared<client::PendingBatch>();
    batch->dtype = v1::DTYPE_F32;
    batch->vocabulary_size = kVocabulary;
    batch->row_bytes = sizeof(float) * kVocabulary;
    if (options.shard) {
      batch->vocabulary_size = options.shard->vocabulary_size;
      batch->is_shard = true;
      batch->first_token = options.shard->first_token;
    }
    batch->deadline = now + timeout;
    batch->ready = ready;
    batch->done = [results](std::vector<client::RowResult> rows) {
      ++results->times;
      results->rows = std::move(rows);
    };
    for (size_t i = 0; i < records.size(); ++i) {
      client::PendingRow& row = batch->rows.emplace_back();
      row.record = records[i];
      row.row.logits = logits + i * kVocabulary;
      if (compact_count != 0) client::StateRow(*batch, compact_count, &row);
    }
    if (stating_from < batch->rows.size()) {
      batch->uses.fetch_add(1);
      for (size_t i = stating_from; i < batch->rows.size(); ++i) {
        batch->rows[i].state = client::PendingRow::State::kStating;
      }
      stating = batch;
    }
    state.Submit(std::move(batch), now);
    Collect();
    return results;
  }
  // Releases the rows with number `stating_from` or more.
  void EndStating() {
    std::vector<client::PendingRow*> rows;
    for (size_t i = stating_from; i < stating->rows.size(); ++i) rows.push_back(&stating->rows[i]);
    state.OnStated(stating, rows, true, now);
    Collect();
  }

  // --- the server

  FakeStream& stream(size_t index) { return *connector.streams.at(index); }
  FakeStream& last_stream() { return *connector.streams.back(); }

  SentMessage Take(FakeStream& stream, v1::StreamRequest::KindCase kind) {
    EXPECT_FALSE(stream.sent.empty()) << "nothing was sent";
    if (stream.sent.empty()) return {};
    SentMessage message = std::move(stream.sent.front());
    stream.sent.pop_front();
    EXPECT_EQ(message.message.kind_case(), kind) << message.message.ShortDebugString();
    return message;
  }
  v1::OpenSequence TakeOpen(FakeStream& stream) { return Take(stream, v1::StreamRequest::kOpen).message.open(); }
  // Releases the rows' bytes at once.
  v1::Step TakeStep(FakeStream& stream) { return Take(stream, v1::StreamRequest::kStep).message.step(); }

  void Respond(FakeStream& stream, const v1::StreamResponse& response) {
    state.OnResponse(stream.number, response, now);
    Collect();
  }
  void Welcome(FakeStream& stream, uint64_t max_message_bytes = 0) {
    Take(stream, v1::StreamRequest::kHello);
    v1::StreamResponse response;
    response.mutable_welcome()->set_max_message_bytes(max_message_bytes);
    response.mutable_welcome()->add_law_versions(law::kLawVersion);
    response.mutable_welcome()->set_max_compact_tokens(max_compact_tokens);
    response.mutable_welcome()->set_max_compact_bytes(max_compact_tokens * 100);
    Respond(stream, response);
  }
  // Returns the hash of a history of `tokens`, as the service computes it for `open`.
  static uint64_t HashOf(const v1::OpenSequence& open, const std::vector<uint32_t>& tokens) {
    service::HistoryIdentity identity;
    identity.law_version = open.law_version();
    identity.seed = SeedOf(open);
    identity.choice_index = open.choice_index();
    identity.vocabulary = open.vocabulary_size();
    identity.live_vocabulary = open.has_live_vocabulary_size() ? open.live_vocabulary_size() : open.vocabulary_size();
    if (open.parameters().has_repetition_penalty()) {
      identity.repetition_penalty = open.parameters().repetition_penalty();
    }
    identity.frequency_penalty = open.parameters().frequency_penalty();
    identity.presence_penalty = open.parameters().presence_penalty();
    uint64_t chain = service::kEmptyHash;
    for (uint32_t token : tokens) chain = service::ExtendTokenHash(chain, token);
    return service::HistoryHash(chain, open.history().prompt_length(), service::HistoryDigest(identity));
  }
  static uint64_t SeedOf(const v1::OpenSequence& open) { return open.has_seed() ? open.seed() : 77; }
  // Accepts an open that carries a history.
  void AcceptOpen(FakeStream& stream, const v1::OpenSequence& open, bool stateful) {
    const std::vector<uint32_t> tokens(open.history().tokens().begin(), open.history().tokens().end());
    AcceptOpen(stream, open, stateful, static_cast<uint32_t>(stateful ? tokens.size() : 0),
               stateful ? HashOf(open, tokens) : 0);
  }
  void AcceptOpen(FakeStream& stream, const v1::OpenSequence& open, bool stateful, uint32_t position, uint64_t hash) {
    v1::StreamResponse response;
    v1::SequenceOpened& opened = *response.mutable_opened();
    opened.set_request_id(open.request_id());
    opened.set_epoch(open.epoch());
    opened.mutable_state()->set_seed(SeedOf(open));
    opened.mutable_state()->set_stateful(stateful);
    opened.mutable_state()->set_position(position);
    opened.mutable_state()->set_history_hash(hash);
    Respond(stream, response);
  }
  void RefuseOpen(FakeStream& stream, const v1::OpenSequence& open, const v1::Error& error) {
    v1::StreamResponse response;
    response.mutable_opened()->set_request_id(open.request_id());
    response.mutable_opened()->set_epoch(open.epoch());
    *response.mutable_opened()->mutable_error() = error;
    Respond(stream, response);
  }
  static v1::StreamResponse Draw(const v1::Step& step, int row, uint32_t token) {
    v1::StreamResponse response;
    response.mutable_results()->set_batch_id(step.batch_id());
    v1::RowResult& result = *response.mutable_results()->add_rows();
    result.set_row(static_cast<uint32_t>(row));
    result.set_step_id(step.rows(row).step_id());
    result.mutable_draw()->set_token(token);
    return response;
  }
  void AnswerRow(FakeStream& stream, const v1::Step& step, int row, uint32_t token) {
    Respond(stream, Draw(step, row, token));
  }
  void RefuseRow(FakeStream& stream, const v1::Step& step, int row, const v1::Error& error) {
    v1::StreamResponse response = Draw(step, row, 0);
    *response.mutable_results()->mutable_rows(0)->mutable_error() = error;
    Respond(stream, response);
  }
  // Answers all rows of a step.
  void RefuseStep(FakeStream& stream, const v1::Step& step, const v1::Error& error) {
    v1::StreamResponse response;
    response.mutable_results()->set_batch_id(step.batch_id());
    *response.mutable_results()->mutable_error() = error;
    Respond(stream, response);
  }
  void Reject(FakeStream& stream, uint64_t message, const v1::Error& error) {
    v1::StreamResponse response;
    response.mutable_rejected()->set_message_index(message);
    *response.mutable_rejected()->mutable_error() = error;
    Respond(stream, response);
  }
  void Drain(FakeStream& stream) {
    v1::StreamResponse response;
    response.mutable_draining()->set_cause(v1::DrainingNotice::CAUSE_SHUTDOWN);
    Respond(stream, response);
  }
  void End(FakeStream& stream, const absl::Status& status = absl::UnavailableError("connection reset")) {
    stream.sent.clear();
    state.OnEnded(stream.number, status, now);
    Collect();
  }
  static v1::Error MakeError(absl::StatusCode code, v1::ErrorReason reason) {
    v1::Error error;
    error.set_code(static_cast<int>(code));
    error.set_reason(reason);
    error.set_message("as scripted");
    return error;
  }
  static v1::Error HistoryRequired() { return MakeError(absl::StatusCode::kFailedPrecondition, v1::HISTORY_REQUIRED); }

  // Moves the clock and calls OnTime.
  void MoveTo(absl::Time time) {
    now = time;
    state.OnTime(now);
    Collect();
  }
  void MoveBy(absl::Duration duration) { MoveTo(now + duration); }

  // Opens a sequence on `stream` with the prompt {1, 2}.
  std::shared_ptr<client::SequenceRecord> OpenOn(FakeStream& stream, const std::string& id, bool stateful) {
    client::SequenceOptions sequence;
    sequence.request_id = id;
    sequence.prompt = {1, 2};
    if (stateful) sequence.parameters.set_repetition_penalty(1.5);
    Opened opened = Open(std::move(sequence));
    const v1::OpenSequence open = TakeOpen(stream);
    EXPECT_EQ(open.has_history(), stateful);
    AcceptOpen(stream, open, stateful);
    EXPECT_TRUE(opened.status->ok()) << *opened.status;
    return opened.record;
  }

  static uint32_t Position(client::SequenceRecord& record) {
    absl::MutexLock lock(&record.mutex);
    return record.history.position();
  }

  const client::ClientOptions options;
  absl::Time now = absl::UnixEpoch();
  FakeConnector& connector;  // `state`'s
  float logits[64 * kVocabulary] = {};
  uint32_t compact_count = 0;        // first tokens in submitted rows' compact form; 0 = they travel whole
  size_t stating_from = ~size_t{0};  // submitted rows with this number or more wait for EndStating
  std::shared_ptr<client::PendingBatch> stating;
  uint32_t max_compact_tokens = 8;  // of servers that welcome later
  client::StreamState state;

 private:
  void Finish(std::shared_ptr<client::PendingBatch> batch) { batch->Finish(); }
  void Collect() {
    client::StreamState::Finished finished = state.TakeFinished();
    for (auto& batch : finished.batches) Finish(batch);
    for (auto& open : finished.opens) std::move(open->done)(std::move(open->status));
  }
};

inline client::ClientOptions HarnessOptions(std::vector<std::string> targets = {"a"}) {
  client::ClientOptions options;
  options.targets = std::move(targets);
  return options;
}

inline const client::RowError* ErrorOfRow(const client::RowResult& result) {
  return std::get_if<client::RowError>(&result);
}
inline const v1::DrawResult* DrawOfRow(const client::RowResult& result) { return std::get_if<v1::DrawResult>(&result); }

}  // namespace sortition::testing
