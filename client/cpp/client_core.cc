// Locks the state machine, and runs the thread that watches the time.
#include "client/cpp/client_core.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cpp/transport/shared_memory.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

// The least number of rows whose compact forms are made before the next message is sent. A message costs both ends
// about the time of four rows.
constexpr size_t kStatedAtOnce = 32;

std::string RandomSession() {
  std::random_device random;
  return absl::StrCat("worker-", absl::Hex(uint64_t{random()} << 32 | random(), absl::kZeroPad16));
}

// The caller's reference to device memory. The memory is forgotten with the last one.
class SharedDeviceMemory final : public Client::DeviceMemory {
 public:
  SharedDeviceMemory(std::shared_ptr<ClientCore> core, std::shared_ptr<const DeviceRows> rows)
      : core_(std::move(core)), rows_(std::move(rows)) {}
  ~SharedDeviceMemory() override { core_->Forget(*rows_); }
  absl::Status sharing() const override { return core_->SharingOf(*rows_); }
  bool IsStated(uint32_t vocabulary_size, uint32_t element_bytes) const override {
    return rows_->state != nullptr && core_->CompactCountOf(vocabulary_size, element_bytes) > 0;
  }

 private:
  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<const DeviceRows> rows_;
};

}  // namespace

ClientCore::ClientCore(ClientOptions options, std::shared_ptr<Connector> connector)
    : options_([&] {
        if (options.worker_session.empty()) options.worker_session = RandomSession();
        return std::move(options);
      }()),
      state_(options_, options_.worker_session,
             StreamState::Environment{
                 std::move(connector), this, static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())),
                 std::random_device()(),
                 [queue = wake_queue_](std::shared_ptr<PendingBatch> batch) { queue->Push(std::move(batch)); }}),
      thread_([this] { Run(); }) {
  Update(Thread::kCallers, [](StreamState& state, absl::Time now) { state.Start(now); });
}

ClientCore::~ClientCore() { SORTITION_CHECK(!thread_.joinable()); }

absl::Status ClientCore::WaitUntilUsable() {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return state_.usable() || state_.links().hopeless(); };
  mutex_.Await(absl::Condition(&settled));
  if (state_.usable()) return absl::OkStatus();
  const absl::Status& last = state_.links().last_status();
  // A target that does not answer in time counts as unreachable. INVALID_ARGUMENT is not passed on: it would blame the
  // arguments of Connect.
  const bool refused = !absl::IsDeadlineExceeded(last) && !absl::IsInvalidArgument(last);
  return absl::Status(refused ? last.code() : absl::StatusCode::kUnavailable,
                      absl::StrCat("no target could be used; ", state_.links().last_failure()));
}

absl::StatusOr<std::unique_ptr<Sequence>> ClientCore::Open(SequenceOptions options) {
  return OpenRecord(std::make_shared<SequenceRecord>(std::move(options)));
}

absl::StatusOr<std::unique_ptr<Sequence>> ClientCore::Fork(const Sequence& parent, SequenceOptions options,
                                                           std::optional<uint32_t> position) {
  if (parent.core_.get() != this) return absl::InvalidArgumentError("Fork: the parent belongs to another client");
  absl::StatusOr<History> history = parent.record_->ForkHistory(position);
  if (!history.ok()) return history.status();
  const uint32_t start = history->position();
  if (history->tokens().size() != start) options.start_position = start;  // the parent keeps no tokens
  history->SetTurns(options.turns);
  auto record = std::make_shared<SequenceRecord>(std::move(options));
  record->origin = SequenceRecord::Origin{parent.record_, start};
  {
    absl::MutexLock lock(&record->mutex);
    record->history = *std::move(history);
  }
  return OpenRecord(std::move(record));
}

absl::StatusOr<std::unique_ptr<Sequence>> ClientCore::OpenRecord(std::shared_ptr<SequenceRecord> record) {
  {
    absl::MutexLock lock(&mutex_);
    if (!request_ids_.insert(record->options.request_id).second) {
      return absl::AlreadyExistsError(absl::StrCat("the client has a sequence ", record->options.request_id));
    }
  }
  absl::Notification answered;
  absl::Status status;
  auto open = std::make_unique<PendingOpen>();
  open->record = record;
  open->deadline = service::SteadyClock().Now() + options_.default_timeout;
  open->done = [&](absl::Status answer) {
    status = std::move(answer);
    answered.Notify();
  };
  Update(Thread::kCallers, [&](StreamState& state, absl::Time now) {
    mutex_.AssertHeld();
    ++unfinished_;
    state.Open(std::move(open), now);
  });
  answered.WaitForNotification();
  CountFinished();
  if (!status.ok()) {
    Close(record);
    return status;
  }
  return std::make_unique<Sequence>(shared_from_this(), std::move(record));
}

absl::Status ClientCore::Submit(const Batch& batch, const StepOptions& options, PendingBatch::Done done, bool polls) {
  auto pending = std::make_shared<PendingBatch>();
  pending->dtype = batch.dtype;
  pending->vocabulary_size = options_.shard ? options_.shard->vocabulary_size : batch.vocabulary_size;
  pending->row_bytes = size_t{batch.vocabulary_size} * ElementBytes(batch.dtype);
  pending->is_shard = options_.shard.has_value();
  if (options_.shard) pending->first_token = options_.shard->first_token;
  pending->draft_dtype = batch.draft_dtype;
  pending->ready = batch.ready;
  pending->deadline = service::SteadyClock().Now() + options.timeout.value_or(options_.default_timeout);
  pending->priority = options.priority;
  pending->traceparent = options.traceparent;
  pending->done = std::move(done);
  pending->rows.resize(batch.rows.size());
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].sequence->core_.get() != this) {
      return absl::InvalidArgumentError(absl::StrCat("rows[", i, "].sequence belongs to another client"));
    }
    pending->rows[i].record = batch.rows[i].sequence->record_;
    pending->rows[i].row = batch.rows[i];
  }
  const Thread thread = polls ? Thread::kPollers : Thread::kCallers;
  const CompactRows to_state = CompactRowsOf(pending.get());
  StateRowsOnDevices(*pending, to_state.count, to_state.on_devices);
  std::span<PendingRow* const> left = to_state.here;
  const auto state_portion = [&] {
    // Three fifths of the remaining rows: the server takes two thirds of this thread's time for a row, so it has run a
    // portion when the next one comes.
    const auto portion = left.first(std::min(std::max(kStatedAtOnce, left.size() * 3 / 5), left.size()));
    left = left.subspan(portion.size());
    for (PendingRow* const row : portion) StateRow(*pending, to_state.count, row);
    return portion;
  };
  // The server runs a portion's rows while this thread states the next portion's.
  state_portion();
  const bool has_more = !left.empty();
  for (PendingRow* const row : left) row->state = PendingRow::State::kStating;
  if (has_more) pending->uses.fetch_add(1, std::memory_order_relaxed);
  Update(thread, [&](StreamState& state, absl::Time now) {
    mutex_.AssertHeld();
    ++unfinished_;
    state.Submit(pending, now);
  });
  while (!left.empty()) {
    const auto portion = state_portion();
    Update(thread, [&](StreamState& state, absl::Time now) { state.OnStated(pending, portion, left.empty(), now); });
  }
  return absl::OkStatus();
}

uint32_t ClientCore::CompactCountOf(uint32_t vocabulary_size, uint32_t element_bytes) const {
  absl::MutexLock lock(&mutex_);
  return state_.CompactCount(uint64_t{vocabulary_size} * element_bytes, element_bytes);
}

ClientCore::CompactRows ClientCore::CompactRowsOf(PendingBatch* batch) const {
  CompactRows rows;
  if (batch->ready) return rows;  // the logits may not be there yet
  absl::MutexLock lock(&mutex_);
  rows.count = state_.CompactCount(batch->row_bytes, ElementBytes(batch->dtype));
  if (rows.count == 0) return rows;
  for (PendingRow& row : batch->rows) {
    std::shared_ptr<const DeviceRows> device = state_.device_rows().Find(row.row.logits);
    if (device == nullptr) {
      rows.here.push_back(&row);
    } else if (device->state != nullptr) {
      rows.on_devices.push_back({&row, std::move(device)});
    }
  }
  return rows;
}

void ClientCore::Close(const std::shared_ptr<SequenceRecord>& record) {
  Update(Thread::kCallers, [&](StreamState& state, absl::Time) {
    mutex_.AssertHeld();
    request_ids_.erase(record->options.request_id);
    state.Close(record.get());
  });
}

void ClientCore::Shutdown() {
  std::vector<std::shared_ptr<Connector>> connectors;
  Update(Thread::kCallers, [&](StreamState& state, absl::Time) {
    state.Stop();
    connectors = state.TakeConnectors();
  });
  connectors.clear();  // waits for the streams' last events, which take the lock
  {
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return unfinished_ == 0; };
    mutex_.Await(absl::Condition(&over));
  }
  wake_queue_->Stop();
  thread_.join();
}

bool ClientCore::in_process() const {
  absl::MutexLock lock(&mutex_);
  return state_.links().in_process();
}

void ClientCore::Poll(absl::FunctionRef<bool()> done) {
  const std::shared_ptr<ClientCore> self = shared_from_this();
  std::shared_ptr<Poller> poller;
  {
    absl::MutexLock lock(&mutex_);
    const std::shared_ptr<Transport> transport = state_.links().current_transport();
    if (transport != nullptr) poller = transport->poller();
  }
  if (poller == nullptr) return;
  poller->Poll(done, [this] {
    absl::MutexLock lock(&mutex_);
    return unfinished_ > 0;
  });
}

std::shared_ptr<SharedMemory> ClientCore::memory() const {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Transport> transport = state_.links().current_transport();
  return transport == nullptr ? nullptr : transport->memory();
}

std::vector<std::shared_ptr<SharedMemory>> ClientCore::memories() const {
  std::vector<std::shared_ptr<SharedMemory>> memories;
  absl::MutexLock lock(&mutex_);
  for (const auto& transport : {state_.links().current_transport(), state_.links().successor_transport()}) {
    auto memory = transport == nullptr ? nullptr : transport->memory();
    if (memory != nullptr) memories.push_back(std::move(memory));
  }
  return memories;
}

absl::StatusOr<std::shared_ptr<const Client::DeviceMemory>> ClientCore::ShareDevice(
    std::shared_ptr<const DeviceRows> rows) {
  // Streams that get shared memory later import the rows by themselves.
  {
    absl::MutexLock lock(&mutex_);
    if (!state_.Share(rows)) return absl::AlreadyExistsError("rows.data: other rows are at some of these addresses");
  }
  auto made = std::make_shared<const SharedDeviceMemory>(shared_from_this(), rows);
  for (const std::shared_ptr<SharedMemory>& memory : memories()) memory->Import(*rows);
  return made;
}

absl::Status ClientCore::SharingOf(const DeviceRows& rows) const {
  std::shared_ptr<Transport> transport;
  {
    absl::MutexLock lock(&mutex_);
    transport = state_.links().current_transport();
  }
  if (transport == nullptr) return absl::UnavailableError("no stream");
  const std::shared_ptr<SharedMemory> memory = transport->memory();
  return memory == nullptr ? absl::FailedPreconditionError("the stream shares no memory") : memory->SharingOf(rows);
}

void ClientCore::Forget(const DeviceRows& rows) {
  {
    absl::MutexLock lock(&mutex_);
    state_.Forget(rows);
  }
  for (const std::shared_ptr<SharedMemory>& memory : memories()) memory->Forget(rows);
}

void ClientCore::OnMemory(SharedMemory* memory, const RetryBudget& budget) {
  std::vector<std::shared_ptr<const DeviceRows>> shared;
  {
    absl::MutexLock lock(&mutex_);
    shared = state_.device_rows().all();
  }
  for (const auto& rows : shared) memory->Import(*rows, budget);
  std::erase_if(shared, [&](const auto& rows) {
    absl::MutexLock lock(&mutex_);
    return state_.device_rows().Find(rows->data) == rows;
  });
  for (const auto& rows : shared) memory->Forget(*rows);  // ended by the caller during the import
}

std::vector<std::string> ClientCore::ignored_fields() const {
  const absl::MutexLock lock(&mutex_);
  return state_.links().ignored_fields();
}

TransportInUse ClientCore::transport_in_use() const {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<Transport> transport = state_.links().current_transport();
  return transport == nullptr ? TransportInUse{.note = "no stream"} : transport->in_use();
}

void ClientCore::OnResponse(uint64_t stream, const v1::StreamResponse& response) {
  Update(Thread::kOurs, [&](StreamState& state, absl::Time now) { state.OnResponse(stream, response, now); });
}

void ClientCore::OnLocalOpened(uint64_t stream, uint64_t epoch, LocalOpenResult result) {
  Update(Thread::kOurs, [&](StreamState& state, absl::Time now) { state.OnLocalOpened(stream, epoch, result, now); });
}

void ClientCore::OnLocalResults(uint64_t stream, uint64_t batch_id, std::vector<LocalResult> results) {
  Update(Thread::kOurs,
         [&](StreamState& state, absl::Time now) { state.OnLocalResults(stream, batch_id, std::move(results), now); });
}

void ClientCore::OnEnded(uint64_t stream, absl::Status status) {
  Update(Thread::kOurs, [&](StreamState& state, absl::Time now) { state.OnEnded(stream, status, now); });
}

void ClientCore::Update(Thread thread, absl::FunctionRef<void(StreamState&, absl::Time)> change) {
  StreamState::Finished finished;
  std::shared_ptr<Transport> transports[2];
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = service::SteadyClock().Now();
    change(state_, now);
    finished = state_.TakeFinished();
    transports[0] = state_.links().current_transport();
    transports[1] = state_.links().successor_transport();
    wake_queue_->SetTime(state_.next_event(now));
  }
  for (const std::shared_ptr<Transport>& transport : transports) {
    if (transport != nullptr) transport->Flush(thread == Thread::kPollers);
  }
  for (const std::unique_ptr<PendingOpen>& open : finished.opens) std::move(open->done)(std::move(open->status));
  for (std::shared_ptr<PendingBatch>& batch : finished.batches) {
    if (thread == Thread::kOurs) {
      FinishBatch(batch.get());
    } else {
      wake_queue_->Push(std::move(batch));
    }
  }
}

void ClientCore::FinishBatch(PendingBatch* batch) {
  batch->Finish();
  CountFinished();
}

void ClientCore::CountFinished() {
  absl::MutexLock lock(&mutex_);
  --unfinished_;
}

void ClientCore::Run() {
  for (;;) {
    const WakeQueue::Event event = wake_queue_->Wait();
    for (const std::shared_ptr<PendingBatch>& batch : event.batches) FinishBatch(batch.get());
    if (event.stopped) return;
    Update(Thread::kOurs, [](StreamState& state, absl::Time now) { state.OnTime(now); });
  }
}

}  // namespace sortition::client
