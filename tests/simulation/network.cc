// Delays, losses and the two ends of a stream.
#include "tests/simulation/network.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/law/version.h"
#include "service/shard/shard_table.h"
#include "service/stream/session.h"
#include "service/wire/frame.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/uploads.h"

namespace sortition::simulation {
namespace {

// Returns the number of rows of an answer that are required whole, or with further tokens.
uint64_t RequiredIn(const v1::StreamResponse& response) {
  return static_cast<uint64_t>(std::ranges::count_if(
      response.results().rows(), [](const v1::RowResult& row) { return row.error().reason() == v1::ROW_REQUIRED; }));
}

}  // namespace

struct Network::Connection {
  uint64_t id = 0;
  uint32_t worker = 0;
  uint32_t replica = 0;
  uint64_t number = 0;  // the stream's number among its worker's, from 1

  // The worker's end. Once it is gone, arriving messages are ignored.
  std::weak_ptr<client::StreamEvents> events;
  bool worker_gone = false;
  bool cut = false;     // messages of both directions are lost
  bool deaf = false;    // answers are lost
  bool silent = false;  // answers are lost, and the worker is not told
  bool paused = false;  // requests wait on the way

  struct Request {
    std::vector<std::byte> bytes;
    std::shared_ptr<void> hold;
  };
  std::deque<Request> requests;
  uint64_t arrived = 0;  // messages that have arrived
  uint64_t delivered = 0;
  uint64_t requests_sent = 0;
  uint64_t answers_sent = 0;
  absl::Time last_request = absl::InfinitePast();
  absl::Time last_answer = absl::InfinitePast();

  std::optional<service::Session> session;  // the replica's end
  Uploads uploads;
  bool draining = false;
  // For planted defects: the service's position and hash after its last answer, by request id.
  std::map<std::string, std::pair<uint32_t, uint64_t>> last_draw;
  std::map<uint64_t, std::vector<std::pair<std::string, uint32_t>>> steps;
  std::set<std::string> stepped;
};

class Network::ConnectionSink final : public service::SessionSink {
 public:
  ConnectionSink(Network* network, std::weak_ptr<Connection> connection)
      : network_(*network), connection_(std::move(connection)) {}
  void Send(const v1::StreamResponse& response, service::Credit credit) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    v1::StreamResponse received;
    SORTITION_CHECK(received.ParseFromString(response.SerializeAsString()));
    network_.SendAnswer(connection, std::move(received), std::move(credit));
  }

 private:
  Network& network_;
  const std::weak_ptr<Connection> connection_;
};

class Network::ConnectionTransport final : public client::Transport {
 public:
  ConnectionTransport(Network* network, std::shared_ptr<Connection> connection)
      : network_(*network), connection_(std::move(connection)) {}
  ~ConnectionTransport() override { Cancel(); }
  void Send(client::OutgoingMessage message) override { network_.SendRequest(connection_, std::move(message)); }
  void Flush(bool) override {}
  void Cancel() override { network_.LeaveAtWorker(connection_); }

 private:
  Network& network_;
  const std::shared_ptr<Connection> connection_;
};

class Network::WorkerConnector final : public client::Connector {
 public:
  WorkerConnector(Network* network, uint32_t worker, std::weak_ptr<client::StreamEvents> events)
      : network_(*network), worker_(worker), events_(std::move(events)) {}
  std::shared_ptr<client::Transport> Start(size_t target, uint64_t stream, client::StreamEvents*) override {
    return std::make_shared<ConnectionTransport>(&network_, network_.Connect(worker_, target, stream, events_));
  }

 private:
  Network& network_;
  const uint32_t worker_;
  const std::weak_ptr<client::StreamEvents> events_;
};

Network::Network(const World& world, Timeline* timeline, std::vector<std::unique_ptr<Replica>>* replicas, Tally* tally,
                 Log log, std::function<void(std::string)> fail)
    : world_(world),
      timeline_(*timeline),
      replicas_(*replicas),
      tally_(*tally),
      log_(std::move(log)),
      fail_(std::move(fail)),
      repeat_until_(world.ranks.size(), absl::InfinitePast()) {}

Network::~Network() {
  for (const auto& connection : connections_) EndAtReplica(connection.get());
}

std::unique_ptr<client::Connector> Network::ConnectorOf(uint32_t worker, std::weak_ptr<client::StreamEvents> events) {
  return std::make_unique<WorkerConnector>(this, worker, std::move(events));
}

absl::Duration Network::Latency(Choice choice, const Connection& connection, uint64_t message) const {
  return world_.max_latency * (Draw(world_.seed, choice, {connection.id, message}) % 1000) / 1000;
}

std::shared_ptr<Network::Connection> Network::Connect(uint32_t worker, size_t target, uint64_t number,
                                                      std::weak_ptr<client::StreamEvents> events) {
  std::erase_if(connections_, [](const auto& old) { return old->worker_gone && !old->session; });
  auto connection = std::make_shared<Connection>();
  connection->id = ++connected_;
  connection->worker = worker;
  connection->replica = world_.ReplicaOf(worker, target);
  connection->number = number;
  connection->events = std::move(events);
  connections_.push_back(connection);
  log_([&] {
    return absl::StrCat(world_.NameOf(worker), " starts stream ", number, " to replica ", connection->replica);
  });
  Replica& replica = *replicas_[connection->replica];
  if (!replica.up()) {
    EndAtWorker(connection, world_.max_latency, absl::UnavailableError("connection refused"));
    return connection;
  }
  connection->session.emplace(replica.engine(), world_.TenantOf(worker),
                              std::make_shared<ConnectionSink>(this, connection));
  if (world_.limits.max_stream_age > absl::ZeroDuration()) {
    timeline_.After(world_.limits.max_stream_age, [this, connection] {
      DrainOne(connection, v1::DrainingNotice::CAUSE_STREAM_AGE, world_.drain_grace);
    });
  }
  return connection;
}

// --- worker to replica

void Network::SendRequest(const std::shared_ptr<Connection>& connection, client::OutgoingMessage message) {
  if (connection->worker_gone) return;
  Connection::Request& request = connection->requests.emplace_back();
  for (const client::Segment& segment : message.segments) {
    const auto* own = reinterpret_cast<const std::byte*>(segment.owned.data());
    request.bytes.insert(request.bytes.end(), own, own + segment.owned.size());
    request.bytes.insert(request.bytes.end(), segment.borrowed.begin(), segment.borrowed.end());
  }
  request.hold = std::move(message.hold);
  connection->last_request =
      std::max(connection->last_request,
               timeline_.Now() + Latency(Choice::kRequestDelay, *connection, ++connection->requests_sent));
  timeline_.At(connection->last_request, [this, connection] {
    ++connection->arrived;
    Pump(connection.get());
  });
}

void Network::Pump(Connection* connection) {
  if (connection->cut || connection->paused) return;
  while (connection->arrived > 0 && connection->session && connection->session->WantsFrames()) {
    const Connection::Request request = std::move(connection->requests.front());
    connection->requests.pop_front();
    --connection->arrived;
    if (connection->worker_gone) ++tally_.late_requests;
    Deliver(connection, request.bytes);
  }
}

service::Frame Network::Decode(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const devices::ByteSegment segment{owner->data(), owner->size()};
  auto decoded = service::DecodeFrame({&segment, 1}, owner);
  SORTITION_CHECK(std::holds_alternative<service::Frame>(decoded));
  return std::get<service::Frame>(std::move(decoded));
}

void Network::Deliver(Connection* connection, const std::vector<std::byte>& bytes) {
  service::Frame frame = Decode(bytes);
  const Draws draws(world_.seed, Choice::kUpload, {connection->id, ++connection->delivered});
  const Uploads::Messages uploads = connection->uploads.Rewrite(draws, &frame);
  const auto upload = [&](const std::vector<std::string>& messages) {
    for (const std::string& message : messages) {
      const auto* const data = reinterpret_cast<const std::byte*>(message.data());
      connection->session->OnFrame(Decode({data, data + message.size()}));
    }
    tally_.mask_uploads += messages.size();
  };
  log_([&] {
    return absl::StrCat(world_.NameOf(connection->worker), " stream ", connection->number, " -> replica ",
                        connection->replica, ": ", frame.message.ShortDebugString());
  });
  if (world_.plant != Plant::kNone) Spoil(connection, &frame.message);
  if (frame.message.step().logits().has_shard()) CountKept(*connection, frame.message.step());
  if (frame.message.has_bring_answer()) {
    if (world_.plant == Plant::kForgottenAnswer) return;
    ++tally_.brought_answers;
  }
  upload(uploads.before);
  if (frame.message.has_close()) {
    DeliverClose(connection, std::move(frame));
  } else {
    connection->session->OnFrame(std::move(frame));
  }
  upload(uploads.after);
}

// Checks that the service keeps no state of this epoch or a lower one after its owner's close.
void Network::DeliverClose(Connection* connection, service::Frame frame) {
  const v1::CloseSequence close = frame.message.close();
  service::SequenceTable& sequences = replicas_[connection->replica]->engine()->sequences();
  const uint32_t before = sequences.live_sequences();
  if (world_.plant != Plant::kLeftState) connection->session->OnFrame(std::move(frame));
  if (close.shard_index() != 0) return;
  tally_.freed_sequences += before - sequences.live_sequences();
  const std::string worker = absl::StrCat("worker ", world_.ranks[connection->worker].worker);
  const auto again = sequences.Close({world_.TenantOf(connection->worker), worker, close.request_id()}, close.epoch());
  if (const uint64_t* const left = std::get_if<uint64_t>(&again); left != nullptr && *left > 0) {
    fail_(absl::StrCat(world_.NameOf(connection->worker), ", ", close.request_id(), ": a close has left its state"));
  }
}

// Counts rows whose rank lost their answer and whose answer the service has kept.
void Network::CountKept(const Connection& connection, const v1::Step& step) {
  service::ShardTable& shards = replicas_[connection.replica]->engine()->shards();
  const service::ShardTable::Worker worker = {world_.TenantOf(connection.worker),
                                              absl::StrCat("worker ", world_.ranks[connection.worker].worker)};
  for (const v1::StepRow& row : step.rows()) {
    if (shards.Find(worker, row, step.logits().shard().index())) ++tally_.kept_answers;
  }
}

// Changes `request` into the request of a defective client.
void Network::Spoil(Connection* connection, v1::StreamRequest* request) {
  if (request->has_open() && request->open().has_history() && request->open().epoch() % 3 == 0) {
    v1::OpenSequence& open = *request->mutable_open();
    if (world_.plant == Plant::kOtherChoice) open.set_choice_index(open.choice_index() + 1);
    if (world_.plant == Plant::kShiftedPrompt && !open.history().continues() && open.history().offset() == 0 &&
        open.history().prompt_length() < static_cast<uint32_t>(open.history().tokens_size())) {
      open.mutable_history()->set_prompt_length(open.history().prompt_length() + 1);
    }
  }
  if (request->has_open() && world_.plant == Plant::kForgottenKey) request->mutable_open()->clear_watermark_key_id();
  if (!request->has_step()) return;
  for (v1::StepRow& row : *request->mutable_step()->mutable_rows()) {
    if (world_.plant == Plant::kOtherTest && row.verify_draft().mode() == v1::VERIFY_MODE_BLOCK) {
      row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_REJECTION);
    }
    if (world_.plant == Plant::kForgottenBan && row.mask().banned_tokens_size() == 1) row.clear_mask();
  }
  if (world_.plant == Plant::kCrossedShards && request->step().logits().shard().index() != 0) {
    v1::Step& step = *request->mutable_step();
    const auto is_draw = [](const v1::StepRow& row) {
      return !row.has_score() && !row.has_verify_draft() && !row.has_verify_tree();
    };
    if (step.rows_size() > 1 && std::ranges::all_of(step.rows(), is_draw)) {
      step.mutable_rows(0)->set_tensor_row(1);
      step.mutable_rows(1)->set_tensor_row(0);
    }
  }
  if (world_.plant == Plant::kLostCheckpoint) {
    for (v1::StepRow& row : *request->mutable_step()->mutable_rows()) {
      if (connection->stepped.insert(row.request_id()).second) row.clear_checkpoint();
    }
  }
  if (world_.plant != Plant::kForgottenRewrite) return;
  for (v1::StepRow& row : *request->mutable_step()->mutable_rows()) {
    connection->steps[request->step().batch_id()].emplace_back(row.request_id(), row.position());
    const auto last = connection->last_draw.find(row.request_id());
    if (!row.has_truncate_to() || row.append_tokens_size() == 0 || last == connection->last_draw.end()) continue;
    row.clear_truncate_to();
    row.clear_append_tokens();
    row.set_position(last->second.first);
    row.set_history_hash(last->second.second);
  }
}

// --- replica to worker

void Network::SendAnswer(const std::shared_ptr<Connection>& connection, v1::StreamResponse response,
                         service::Credit credit) {
  timeline_.After(absl::ZeroDuration(), [this, connection, credit = std::move(credit)]() mutable {
    { const service::Credit left = std::move(credit); }
    if (!connection->session) return;
    Pump(connection.get());
    FinishIfDrained(connection);
  });
  if (response.has_mask_uploaded()) {
    SORTITION_CHECK(!response.mask_uploaded().has_error());
    return;  // the client is not told
  }
  if (connection->cut || connection->deaf || connection->worker_gone) {
    CountLost(response);
    return;
  }
  if (response.has_welcome() && timeline_.Now() < replicas_[connection->replica]->other_law_until) {
    response.mutable_welcome()->set_law_versions(0, law::kLawVersion + 1);
  }
  connection->last_answer =
      std::max(connection->last_answer,
               timeline_.Now() + Latency(Choice::kAnswerDelay, *connection, ++connection->answers_sent));
  timeline_.At(connection->last_answer,
               [this, connection, response = std::move(response)] { Arrive(connection.get(), response); });
}

void Network::CountLost(const v1::StreamResponse& response) {
  ++tally_.lost_messages;
  tally_.lost_required += RequiredIn(response);
}

void Network::Arrive(Connection* connection, const v1::StreamResponse& response) {
  const auto events = connection->events.lock();
  if (connection->cut || connection->deaf || connection->worker_gone || events == nullptr) {
    CountLost(response);
    return;
  }
  log_([&] {
    return absl::StrCat(world_.NameOf(connection->worker), " stream ", connection->number, " <- replica ",
                        connection->replica, ": ", response.ShortDebugString());
  });
  if (world_.plant == Plant::kForgottenRewrite && response.has_results()) {
    const auto& rows = connection->steps[response.results().batch_id()];
    for (const v1::RowResult& row : response.results().rows()) {
      if (row.has_draw() && row.draw().has_history_hash()) {
        connection->last_draw[rows[row.row()].first] = {rows[row.row()].second + 1, row.draw().history_hash()};
      }
    }
  }
  if (response.forked().has_state()) ++tally_.forks;
  for (const v1::RowResult& row : response.results().rows()) {
    if (row.error().reason() == v1::DEADLINE_PASSED && row.error().field() == "step.logits.shard") {
      ++tally_.missing_shards;
    }
  }
  events->OnResponse(connection->number, response);
  if (timeline_.Now() < repeat_until_[connection->worker] && !connection->worker_gone) {
    ++tally_.repeated_answers;
    tally_.repeated_required += RequiredIn(response);
    events->OnResponse(connection->number, response);
  }
}

// --- ends

void Network::EndAtReplica(Connection* connection) {
  if (!connection->session) return;
  connection->session->Close();
  connection->session.reset();
}

void Network::EndAtWorker(const std::shared_ptr<Connection>& connection, absl::Duration delay, absl::Status status) {
  // The end arrives after all answers that were sent before it.
  timeline_.At(std::max(timeline_.Now() + delay, connection->last_answer), [connection, status = std::move(status)] {
    if (std::exchange(connection->worker_gone, true)) return;
    for (Connection::Request& request : connection->requests) request.hold.reset();
    if (const auto events = connection->events.lock()) events->OnEnded(connection->number, status);
  });
}

// The worker cancels. The replica learns of it later; messages sent before may or may not arrive.
void Network::LeaveAtWorker(const std::shared_ptr<Connection>& connection) {
  if (std::exchange(connection->worker_gone, true)) return;
  if (connection->silent) ++tally_.silent_streams;
  for (Connection::Request& request : connection->requests) request.hold.reset();
  const absl::Duration linger = 3 * Latency(Choice::kLinger, *connection, 0);
  timeline_.After(linger, [this, connection] { EndAtReplica(connection.get()); });
}

template <typename Apply>
void Network::OfWorker(uint32_t worker, Apply apply) {
  for (const auto& connection : std::vector(connections_)) {
    if (connection->worker == worker && !connection->worker_gone && !connection->cut) apply(connection);
  }
}

void Network::Cut(uint32_t worker, absl::Duration length) {
  OfWorker(worker, [&](const std::shared_ptr<Connection>& connection) {
    connection->cut = true;
    EndAtWorker(connection, length / 4, absl::UnavailableError("connection reset"));
    timeline_.After(length, [this, connection] { EndAtReplica(connection.get()); });
  });
}

void Network::Ghost(uint32_t worker, absl::Duration length) {
  OfWorker(worker, [&](const std::shared_ptr<Connection>& connection) {
    connection->paused = true;
    connection->deaf = true;
    EndAtWorker(connection, absl::ZeroDuration(), absl::UnavailableError("connection reset"));
    timeline_.After(length, [this, connection] {
      connection->paused = false;
      Pump(connection.get());
    });
    timeline_.After(length + world_.max_latency + world_.max_service,
                    [this, connection] { EndAtReplica(connection.get()); });
  });
}

void Network::Deafen(uint32_t worker, absl::Duration length) {
  OfWorker(worker, [&](const std::shared_ptr<Connection>& connection) {
    connection->deaf = true;
    EndAtWorker(connection, length, absl::UnavailableError("connection timed out"));
    timeline_.After(length + world_.max_latency, [this, connection] { EndAtReplica(connection.get()); });
  });
}

void Network::Silence(uint32_t worker) {
  OfWorker(worker,
           [&](const std::shared_ptr<Connection>& connection) { connection->deaf = connection->silent = true; });
}

void Network::Repeat(uint32_t worker, absl::Duration length) { repeat_until_[worker] = timeline_.Now() + length; }

void Network::Break(uint32_t replica) {
  for (const auto& connection : std::vector(connections_)) {
    if (connection->replica != replica) continue;
    connection->cut = true;
    EndAtReplica(connection.get());
    EndAtWorker(connection, Latency(Choice::kAnswerDelay, *connection, ~uint64_t{0}),
                absl::UnavailableError("connection reset"));
  }
}

void Network::Drain(uint32_t replica, v1::DrainingNotice::Cause cause, absl::Duration grace) {
  for (const auto& connection : std::vector(connections_)) {
    if (connection->replica == replica) DrainOne(connection, cause, grace);
  }
}

void Network::DrainOne(const std::shared_ptr<Connection>& connection, v1::DrainingNotice::Cause cause,
                       absl::Duration grace) {
  if (!connection->session || std::exchange(connection->draining, true)) return;
  ++tally_.drained_streams;
  connection->session->Drain(cause, grace);
  timeline_.After(grace, [this, connection] {
    if (!connection->session) return;
    EndAtReplica(connection.get());
    EndAtWorker(connection, world_.max_latency, absl::UnavailableError("the grace is over"));
  });
}

void Network::FinishIfDrained(const std::shared_ptr<Connection>& connection) {
  if (!connection->draining || !connection->session || !connection->session->Idle()) return;
  EndAtReplica(connection.get());
  EndAtWorker(connection, world_.max_latency, absl::UnavailableError("drained"));
}

}  // namespace sortition::simulation
