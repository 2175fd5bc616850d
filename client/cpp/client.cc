// Checks the arguments of the public calls, and blocks in those that have an asynchronous form.
#include "sortition/client.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/client_core.h"
#include "client/cpp/transport/device_rows.h"
#include "client/cpp/transport/shared_memory.h"
#include "client/cpp/transport/unix_socket.h"
#include "kernels/check.h"
#include "kernels/row.h"
#include "service/clock.h"
#include "service/limits.h"

namespace sortition::client {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr absl::Duration kAskInterval = absl::Milliseconds(50);  // of StepWhile
constexpr absl::string_view kInProcessTarget = "in_process";

absl::Status WrongOption(absl::string_view field, absl::string_view limit) {
  RowError error;
  error.code = absl::StatusCode::kInvalidArgument;
  error.reason = v1::OUT_OF_RANGE;
  error.field = absl::StrCat("ClientOptions::", field);
  error.limit = std::string(limit);
  error.message = absl::StrCat("must be ", limit);
  return ToStatus(error);
}

absl::Status CheckShard(const ClientOptions& options) {
  const VocabularyShard& shard = *options.shard;
  if (shard.count < 2 || shard.count > service::kMaxShards)
    return WrongOption("shard.count", absl::StrCat("2..", service::kMaxShards));
  if (shard.index >= shard.count) return WrongOption("shard.index", "below shard.count");
  if (shard.vocabulary_size == 0 || shard.vocabulary_size > kernels::kMaxVocabulary)
    return WrongOption("shard.vocabulary_size", absl::StrCat("1..", kernels::kMaxVocabulary));
  if (shard.first_token >= shard.vocabulary_size)
    return WrongOption("shard.first_token", "below shard.vocabulary_size");
  if (shard.tokens == 0 || shard.tokens > shard.vocabulary_size - shard.first_token)
    return WrongOption("shard.tokens", absl::StrCat("1..", shard.vocabulary_size - shard.first_token));
  if (options.targets.size() != 1) return WrongOption("targets", "one with a shard: all ranks meet at one server");
  if (options.in_process) return WrongOption("in_process", "null with a shard: ranks do not meet in process");
  if (options.worker_session.empty()) return WrongOption("worker_session", "given with a shard, alike for all ranks");
  return absl::OkStatus();
}

absl::Status CheckOptions(const ClientOptions& options) {
  const auto& refuse = WrongOption;
  if (options.targets.empty() && !options.in_process) return refuse("targets", "given, or in_process set");
  for (const std::string& target : options.targets) {
    if (target.empty()) return refuse("targets", "addresses that are not empty");
    if (target == kInProcessTarget && !options.in_process)
      return refuse("in_process",
                    "set where \"in_process\" is a target: link sortition_in_process, and set it to "
                    "InProcessEngine()");
    if (target == kInProcessTarget) return refuse("targets", "addresses, and \"in_process\" only as the last");
    if (options.transport.kind == TransportKind::kRing && !IsUnixTarget(target))
      return refuse("targets", "memory sockets, \"unix:path\", with TransportKind::kRing");
  }
  if (options.shard) {
    if (absl::Status status = CheckShard(options); !status.ok()) return status;
  }
  if (options.worker_session.size() > service::kMaxNameBytes) return refuse("worker_session", "at most 128 bytes");
  if (options.name.size() > service::kMaxNameBytes) return refuse("name", "at most 128 bytes");
  if (!std::all_of(options.transport.token.begin(), options.transport.token.end(), absl::ascii_isgraph)) {
    return refuse("transport.token", "printable ASCII without spaces");
  }
  if (options.retry.connect_timeout <= absl::ZeroDuration()) return refuse("retry.connect_timeout", "above 0");
  if (options.transport.keepalive < absl::Seconds(10) || options.transport.keepalive > absl::Hours(24)) {
    return refuse("transport.keepalive", "10 s to 24 h");
  }
  if (options.default_timeout <= absl::ZeroDuration()) return refuse("default_timeout", "above 0");
  if (options.retry.fallback_stay < absl::ZeroDuration()) return refuse("retry.fallback_stay", "at least 0");
  if (options.retry.backoff.initial <= absl::ZeroDuration()) return refuse("retry.backoff.initial", "above 0");
  if (options.retry.backoff.max < options.retry.backoff.initial)
    return refuse("retry.backoff.max", "at least retry.backoff.initial");
  if (options.transport.shared_memory_bytes == 0 && options.transport.kind == TransportKind::kRing)
    return refuse("transport.shared_memory_bytes", "at least 1 with TransportKind::kRing");
  if (options.rows.count == 0 || options.rows.count > kernels::kMaxVocabulary)
    return refuse("rows.count", absl::StrCat("1..", kernels::kMaxVocabulary));
  if (options.limits.message_rows == 0) return refuse("limits.message_rows", "at least 1");
  if (options.limits.history_piece_tokens == 0) return refuse("limits.history_piece_tokens", "at least 1");
  return absl::OkStatus();
}

absl::Status CheckBatch(const Batch& batch, const StepOptions& options, const std::optional<VocabularyShard>& shard) {
  if (batch.rows.empty()) return absl::InvalidArgumentError("a batch must have rows");
  if (ElementBytes(batch.dtype) == 0)
    return absl::InvalidArgumentError("dtype must be DTYPE_F32, DTYPE_F16 or DTYPE_BF16");
  if (batch.vocabulary_size == 0 || batch.vocabulary_size > kernels::kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary_size must be 1..", kernels::kMaxVocabulary));
  }
  if (shard && batch.vocabulary_size != shard->tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary_size must be ClientOptions::shard.tokens, ", shard->tokens));
  }
  if (ElementBytes(batch.draft_dtype) == 0)
    return absl::InvalidArgumentError("draft_dtype must be DTYPE_F32, DTYPE_F16 or DTYPE_BF16");
  if (batch.ready && (batch.ready->word == nullptr || reinterpret_cast<uintptr_t>(batch.ready->word) % 4 != 0))
    return absl::InvalidArgumentError("ready.word must be at a multiple of 4");
  if (options.timeout && *options.timeout <= absl::ZeroDuration())
    return absl::InvalidArgumentError("timeout must be above 0");
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].sequence == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("rows[", i, "].sequence is null"));
    if (const absl::Status status = CheckRow(batch.rows[i]); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("rows[", i, "].", status.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const SequenceOptions& options, const ClientOptions& client) {
  const std::optional<VocabularyShard>& shard = client.shard;
  if (options.receipts != nullptr && client.in_process) {
    return absl::InvalidArgumentError("receipts: a service makes them, not this process");
  }
  if (options.receipts != nullptr && shard && shard->index != 0) {
    return absl::InvalidArgumentError("receipts: of rows in shards the log is rank 0's");
  }
  if (!shard && options.turns != 0) return absl::InvalidArgumentError("turns: with ClientOptions::shard only");
  if (!shard || options.vocabulary_size == shard->vocabulary_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("vocabulary_size must be ClientOptions::shard.vocabulary_size, ", shard->vocabulary_size));
}

}  // namespace

std::optional<RowFormOptions> RowFormOptions::Parse(std::string_view text) {
  if (text == "auto") return RowFormOptions{Form::kAuto};
  if (text == "full") return RowFormOptions{Form::kFull};
  RowFormOptions options{Form::kCompact};
  if (text == "compact") return options;
  absl::string_view count(text.data(), text.size());
  if (!absl::ConsumePrefix(&count, "compact(") || !absl::ConsumeSuffix(&count, ")") ||
      !absl::SimpleAtoi(count, &options.count)) {
    return std::nullopt;
  }
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  return ConnectWith(std::move(options), nullptr);
}

absl::StatusOr<std::unique_ptr<Client>> Client::ConnectWith(ClientOptions options,
                                                            std::shared_ptr<Connector> connector) {
  if (options.in_process && !options.targets.empty() && options.targets.back() == kInProcessTarget) {
    options.targets.pop_back();
  }
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  std::unique_ptr<Client> client(new Client(std::make_shared<ClientCore>(std::move(options), std::move(connector))));
  if (absl::Status status = client->core_->WaitUntilUsable(); !status.ok()) return status;
  return client;
}

Client::Client(std::shared_ptr<ClientCore> core) : core_(std::move(core)) {}

Client::~Client() { core_->Shutdown(); }

absl::StatusOr<std::unique_ptr<Sequence>> Client::Open(SequenceOptions options) {
  if (options.start_position && !options.prompt.empty()) {
    return absl::InvalidArgumentError("start_position and prompt exclude each other");
  }
  if (absl::Status status = CheckSequence(options, core_->options()); !status.ok()) return status;
  return core_->Open(std::move(options));
}

absl::StatusOr<std::unique_ptr<Sequence>> Client::Fork(const Sequence& parent, SequenceOptions options,
                                                       std::optional<uint32_t> position) {
  if (options.start_position || !options.prompt.empty()) {
    return absl::InvalidArgumentError("a fork has the tokens of its parent, and no prompt of its own");
  }
  if (options.rewound != Rewound()) return absl::InvalidArgumentError("rewound: a fork has those of its parent");
  if (absl::Status status = CheckSequence(options, core_->options()); !status.ok()) return status;
  return core_->Fork(parent, std::move(options), position);
}

absl::StatusOr<std::vector<RowResult>> Client::Step(const Batch& batch, const StepOptions& options) {
  std::vector<RowResult> results;
  const auto done = [&results](std::vector<RowResult> result) { results = std::move(result); };
  const auto answered = StepWhile(batch, options, done, [] { return true; });
  if (!answered.ok()) return answered.status();
  return results;
}

absl::StatusOr<bool> Client::StepWhile(const Batch& batch, const StepOptions& options, StepDone done,
                                       absl::FunctionRef<bool()> goes_on) {
  if (absl::Status status = CheckBatch(batch, options, core_->options().shard); !status.ok()) return status;
  const auto over = std::make_shared<absl::Notification>();  // may outlive this call
  auto notify = [over, done = std::move(done)](std::vector<RowResult> results) mutable {
    done(std::move(results));
    over->Notify();
  };
  if (absl::Status status = core_->Submit(batch, options, std::move(notify), /*polls=*/true); !status.ok()) {
    return status;
  }
  const service::SteadyClock clock;
  do {
    const absl::Time until = clock.Now() + kAskInterval;
    core_->Poll([&] { return over->HasBeenNotified() || clock.Now() >= until; });
    if (over->WaitForNotificationWithTimeout(until - clock.Now())) return true;
  } while (goes_on());
  return false;
}

absl::Status Client::StepAsync(const Batch& batch, const StepOptions& options, StepDone done) {
  if (absl::Status status = CheckBatch(batch, options, core_->options().shard); !status.ok()) return status;
  return core_->Submit(batch, options, std::move(done), /*polls=*/false);
}

absl::StatusOr<Client::RowMemory> Client::AllocateRows(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes must be at least 1");
  if (const std::shared_ptr<SharedMemory> memory = core_->memory()) {
    auto region = memory->Allocate(bytes);
    if (!region.ok()) return region.status();
    std::byte* const data = (*region)->bytes().data();
    return RowMemory{std::shared_ptr<std::byte>(*std::move(region), data), bytes, true};
  }
  const size_t size = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const data = size < bytes ? nullptr : static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size));
  if (data == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  return RowMemory{std::shared_ptr<std::byte>(data, [](std::byte* last) { std::free(last); }), bytes, false};
}

absl::StatusOr<std::shared_ptr<const Client::DeviceMemory>> Client::ShareDevice(DeviceRows rows) {
  if (rows.data == nullptr || rows.bytes == 0 || rows.read == nullptr || rows.bytes > rows.handle.bytes) {
    return absl::InvalidArgumentError("rows: data, read and bytes, of which 1..handle.bytes, must be set");
  }
  return core_->ShareDevice(std::make_shared<const DeviceRows>(std::move(rows)));
}

TransportInUse Client::transport_in_use() const { return core_->transport_in_use(); }

std::vector<std::string> Client::ignored_fields() const { return core_->ignored_fields(); }

const std::string& Client::worker_session() const { return core_->options().worker_session; }

bool Client::in_process() const { return core_->in_process(); }

}  // namespace sortition::client
