// The client: its options, its steps, and the memory that it allocates.
#include "sortition/client.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "client/c/step.h"
#include "sortition/in_process.h"

namespace sortition::c {

void EndClient::operator()(client::Client* last) const {
  const auto end = [last, done = ended] {
    delete last;
    done->Notify();
  };
  if (!InCallback::here()) return end();
  try {
    std::thread(end).detach();
  } catch (const std::exception&) {
    ended->Notify();  // no thread can end the client, so it stays
  }
}

namespace {

// Take the caller's value, unless it is 0.
void Set(uint64_t value, absl::Duration* option) {
  if (value != 0) *option = absl::Nanoseconds(static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
}
template <typename Number>
void Set(Number value, Number* option) {
  if (value != 0) *option = value;
}

// As Set; SORTITION_NEVER turns the option off.
template <typename Value>
void SetOrNever(uint64_t value, Value* option) {
  if (value == SORTITION_NEVER) {
    *option = Value();
  } else {
    Set(value, option);
  }
}

// Take the caller's value, which may be every one of the enum's.
absl::Status SetTransport(int32_t value, client::TransportKind* option) {
  switch (value) {
    case SORTITION_TRANSPORT_AUTO:
      *option = client::TransportKind::kAuto;
      return absl::OkStatus();
    case SORTITION_TRANSPORT_GRPC:
      *option = client::TransportKind::kGrpc;
      return absl::OkStatus();
    case SORTITION_TRANSPORT_RING:
      *option = client::TransportKind::kRing;
      return absl::OkStatus();
    default:
      return Refuse(v1::UNKNOWN_ENUM_VALUE, "options.transport", "SORTITION_TRANSPORT_*", absl::StrCat(value));
  }
}

absl::Status SetRows(const char* given, client::RowFormOptions* option) {
  if (given == nullptr) return absl::OkStatus();
  const auto text = Text(given, "options.rows");
  if (!text.ok()) return text.status();
  const auto rows = client::RowFormOptions::Parse(*text);
  if (!rows) return Refuse(v1::OUT_OF_RANGE, "options.rows", "auto, full, compact or compact(COUNT)", *text);
  *option = *rows;
  return absl::OkStatus();
}

absl::Status SetFallback(int32_t value, uint32_t threads, client::InProcess* option) {
  if (value != SORTITION_FALLBACK_NONE && value != SORTITION_FALLBACK_IN_PROCESS) {
    return Refuse(v1::UNKNOWN_ENUM_VALUE, "options.fallback", "SORTITION_FALLBACK_*", absl::StrCat(value));
  }
  if (value == SORTITION_FALLBACK_IN_PROCESS) *option = client::InProcessEngine(threads);
  return absl::OkStatus();
}

// Takes the caller's texts, except null ones.
absl::Status SetTexts(std::initializer_list<std::tuple<const char*, const char*, std::string*>> texts) {
  for (const auto& [given, name, option] : texts) {
    if (given == nullptr) continue;
    auto text = Text(given, Name("options", name));
    if (!text.ok()) return text.status();
    *option = *std::move(text);
  }
  return absl::OkStatus();
}

absl::Status SetTargets(const sortition_client_options& given, std::vector<std::string>* targets) {
  const auto list = Span(given.targets, given.target_count, "options.targets");
  if (!list.ok()) return list.status();
  for (const char* const target : *list) {
    const Name all("options.targets");
    const Name name(all, targets->size());
    if (target == nullptr) return Missing(name);
    auto text = Text(target, name);
    if (!text.ok()) return text.status();
    targets->push_back(*std::move(text));
  }
  return absl::OkStatus();
}

absl::StatusOr<client::ClientOptions> ReadClientOptions(const sortition_client_options* from) {
  const auto given = Read(from, SORTITION_C_SIZE_TO(sortition_client_options, target_count), "options");
  if (!given.ok()) return given.status();
  client::ClientOptions options;
  options.name = "sortition-c";
  options.ignore_unknown_fields = given->ignore_unknown_fields != 0;
  client::TlsOptions tls;
  absl::Status status = SetTargets(*given, &options.targets);
  status.Update(SetTransport(given->transport, &options.transport.kind));
  status.Update(SetRows(given->rows, &options.rows));
  status.Update(SetFallback(given->fallback, given->in_process_threads, &options.in_process));
  status.Update(SetTexts({{given->worker_session, "worker_session", &options.worker_session},
                          {given->name, "name", &options.name},
                          {given->token, "token", &options.transport.token},
                          {given->tls_root_certificates, "tls_root_certificates", &tls.root_certificates},
                          {given->tls_certificate_chain, "tls_certificate_chain", &tls.certificate_chain},
                          {given->tls_private_key, "tls_private_key", &tls.private_key},
                          {given->tls_server_name, "tls_server_name", &tls.server_name}}));
  if (!status.ok()) return status;
  const bool has_tls_text = given->tls_root_certificates != nullptr || given->tls_certificate_chain != nullptr ||
                            given->tls_private_key != nullptr || given->tls_server_name != nullptr;
  if (given->use_tls != 0) {
    options.transport.tls = std::move(tls);
  } else if (has_tls_text) {
    return Refuse(v1::CONTRADICTION, "options.use_tls", "1", "there are TLS texts, which plain text would not use");
  }
  Set(given->default_timeout_ns, &options.default_timeout);
  Set(given->connect_timeout_ns, &options.retry.connect_timeout);
  Set(given->keepalive_ns, &options.transport.keepalive);
  Set(given->backoff_initial_ns, &options.retry.backoff.initial);
  Set(given->backoff_max_ns, &options.retry.backoff.max);
  SetOrNever(given->fallback_stay_ns, &options.retry.fallback_stay);
  SetOrNever(given->shared_memory_bytes, &options.transport.shared_memory_bytes);
  SetOrNever(given->ring_spin_ns, &options.transport.ring_spin);
  Set(given->message_bytes, &options.limits.message_bytes);
  Set(given->history_window_tokens, &options.limits.history_window_tokens);
  Set(given->message_rows, &options.limits.message_rows);
  Set(given->history_piece_tokens, &options.limits.history_piece_tokens);
  if (given->has_memory_server_user != 0) options.transport.memory_server_user = given->memory_server_user;
  const client::VocabularyShard shard = {given->shard_index, given->shard_count, given->shard_first_token,
                                         given->shard_tokens, given->shard_vocabulary_size};
  if (shard.count != 0) {
    options.shard = shard;
  } else if ((shard.index | shard.first_token | shard.tokens | shard.vocabulary_size) != 0) {
    return Refuse(v1::CONTRADICTION, "options.shard_count", "2..256", "0, where the shard has other fields");
  }
  return options;
}

absl::StatusOr<client::StepOptions> ReadStepOptions(const sortition_step_options* from) {
  client::StepOptions options;
  if (from == nullptr) return options;
  const auto given = Read(from, SORTITION_C_SIZE_TO(sortition_step_options, timeout_ns), "options");
  if (!given.ok()) return given.status();
  if (given->timeout_ns != 0) Set(given->timeout_ns, &options.timeout.emplace());
  options.priority = given->priority;
  if (absl::Status status = SetTexts({{given->traceparent, "traceparent", &options.traceparent}}); !status.ok()) {
    return status;
  }
  return options;
}

absl::StatusOr<sortition_client*> Connect(const sortition_client_options* given) {
  auto options = ReadClientOptions(given);
  if (!options.ok()) return options.status();
  auto connected = client::Client::Connect(*std::move(options));
  if (!connected.ok()) return connected.status();
  return AllClients::All().Add(std::shared_ptr<client::Client>(connected->release(), EndClient()));
}

absl::Status Close(sortition_client* handle) {
  if (InCallback::here())
    return absl::FailedPreconditionError("client: not within a callback, which would wait for itself");
  auto client = AllClients::All().Remove(handle, "client");
  if (!client.ok()) return client.status();
  const std::shared_ptr<absl::Notification> ended = std::get_deleter<EndClient>(*client)->ended;
  client->reset();
  ended->WaitForNotification();
  return absl::OkStatus();
}

absl::StatusOr<sortition_sequence*> Open(sortition_client* handle, const sortition_sequence_options* given) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  auto options = ReadSequenceOptions(given);
  if (!options.ok()) return options.status();
  auto opened = (*client)->Open(*std::move(options));
  if (!opened.ok()) return opened.status();
  return AllSequences::All().Add(std::make_shared<Sequence>(*std::move(opened), *client));
}

absl::StatusOr<sortition_results*> Step(sortition_client* handle, const sortition_batch* batch,
                                        const sortition_step_options* given) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  const auto options = ReadStepOptions(given);
  if (!options.ok()) return options.status();
  const auto input = ReadBatch(batch, false);
  if (!input.ok()) return input.status();
  auto results = (*client)->Step(input->batch, *options);
  if (!results.ok()) return results.status();
  return MakeResults(*std::move(results));
}

// Passes the results to the callback, or null if there is no memory for them.
void Deliver(std::vector<client::RowResult> results, sortition_step_done done, void* user_data) {
  sortition_results* made = nullptr;
  try {
    made = MakeResults(std::move(results));
  } catch (const std::bad_alloc&) {
    made = nullptr;
  }
  const InCallback scope;
  done(user_data, made);
}

absl::Status StepAsync(sortition_client* handle, const sortition_batch* batch, const sortition_step_options* given,
                       sortition_step_done done, void* user_data) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  if (done == nullptr) return Missing("done");
  const auto options = ReadStepOptions(given);
  if (!options.ok()) return options.status();
  auto read = ReadBatch(batch, false);
  if (!read.ok()) return read.status();
  // The callback owns the input: rows refer to it, and sequences must outlive their steps.
  auto input = std::make_shared<StepInput>(*std::move(read));
  return (*client)->StepAsync(input->batch, *options, [input, done, user_data](std::vector<client::RowResult> results) {
    Deliver(std::move(results), done, user_data);
  });
}

struct OwnedMemory : sortition_memory {
  std::shared_ptr<std::byte> owner;
};

absl::StatusOr<sortition_memory*> Allocate(sortition_client* handle, uint64_t bytes) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  auto allocated = (*client)->AllocateRows(bytes);
  if (!allocated.ok()) return allocated.status();
  auto memory = std::make_unique<OwnedMemory>();
  memory->struct_size = sizeof(sortition_memory);
  memory->data = allocated->data.get();
  memory->bytes = allocated->bytes;
  memory->shared = allocated->shared ? 1 : 0;
  memory->owner = std::move(allocated->data);
  return memory.release();
}

absl::Status GetTransport(sortition_client* handle, sortition_transport_in_use* use) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  auto filled = Read(use, SORTITION_C_SIZE_TO(sortition_transport_in_use, row_memory), "use");
  if (!filled.ok()) return filled.status();
  const client::TransportInUse now = (*client)->transport_in_use();
  filled->transport = now.kind == client::TransportKind::kRing ? SORTITION_TRANSPORT_RING : SORTITION_TRANSPORT_GRPC;
  filled->row_memory = now.row_memory ? 1 : 0;
  filled->in_process = now.in_process ? 1 : 0;
  filled->note_length = now.note.size();
  CopyText(now.note, filled->note, filled->note_size);
  Fill(*filled, use);
  return absl::OkStatus();
}

// Copies what `text` returns of the client.
template <typename TextOf>
absl::Status GetText(sortition_client* handle, char* buffer, size_t size, size_t* length, const TextOf& text_of) {
  const auto client = AllClients::All().Find(handle, "client");
  if (!client.ok()) return client.status();
  if (length == nullptr) return Missing("length");
  const std::string text = text_of(**client);
  CopyText(text, buffer, size);
  *length = text.size();
  return absl::OkStatus();
}

std::string IgnoredFields(const client::Client& client) {
  std::string lines;
  for (const std::string& field : client.ignored_fields()) absl::StrAppend(&lines, field, "\n");
  return lines;
}

}  // namespace
}  // namespace sortition::c

extern "C" {

using sortition::c::Call;
using sortition::c::Make;

sortition_code sortition_client_connect(const sortition_client_options* options, sortition_client** client,
                                        sortition_error** error) {
  return Make(client, "client", error, [&] { return sortition::c::Connect(options); });
}

sortition_code sortition_client_close(sortition_client* client, sortition_error** error) {
  return Call(error, [&] { return sortition::c::Close(client); });
}

sortition_code sortition_client_open(sortition_client* client, const sortition_sequence_options* options,
                                     sortition_sequence** sequence, sortition_error** error) {
  return Make(sequence, "sequence", error, [&] { return sortition::c::Open(client, options); });
}

sortition_code sortition_client_step(sortition_client* client, const sortition_batch* batch,
                                     const sortition_step_options* options, sortition_results** results,
                                     sortition_error** error) {
  return Make(results, "results", error, [&] { return sortition::c::Step(client, batch, options); });
}

sortition_code sortition_client_step_async(sortition_client* client, const sortition_batch* batch,
                                           const sortition_step_options* options, sortition_step_done done,
                                           void* user_data, sortition_error** error) {
  return Call(error, [&] { return sortition::c::StepAsync(client, batch, options, done, user_data); });
}

sortition_code sortition_client_allocate(sortition_client* client, uint64_t bytes, sortition_memory** memory,
                                         sortition_error** error) {
  return Make(memory, "memory", error, [&] { return sortition::c::Allocate(client, bytes); });
}

void sortition_memory_free(sortition_memory* memory) { delete static_cast<sortition::c::OwnedMemory*>(memory); }

sortition_code sortition_client_get_transport(sortition_client* client, sortition_transport_in_use* use,
                                              sortition_error** error) {
  return Call(error, [&] { return sortition::c::GetTransport(client, use); });
}

sortition_code sortition_client_get_ignored_fields(sortition_client* client, char* buffer, size_t size, size_t* length,
                                                   sortition_error** error) {
  return Call(error, [&] { return sortition::c::GetText(client, buffer, size, length, sortition::c::IgnoredFields); });
}

sortition_code sortition_client_get_worker_session(sortition_client* client, char* buffer, size_t size, size_t* length,
                                                   sortition_error** error) {
  const auto worker_session = [](const sortition::client::Client& of) { return of.worker_session(); };
  return Call(error, [&] { return sortition::c::GetText(client, buffer, size, length, worker_session); });
}

}  // extern "C"
