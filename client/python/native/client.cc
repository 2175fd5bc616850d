// Binds the C++ client. Calls that may block or call back run without the GIL.
#include "sortition/client.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/python/native/cuda_results.h"
#include "client/python/native/device_memory.h"
#include "client/python/native/module.h"
#include "client/python/native/ready.h"
#include "client/python/native/results.h"
#include "client/python/native/tasks.h"
#include "client/python/native/tensor.h"
#include "sortition/in_process.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

// A handle, which may outlive the client.
struct Sequence {
  std::shared_ptr<client::Sequence> handle;
  std::shared_ptr<client::ReceiptLog> receipts = nullptr;  // null: it has none

  client::Sequence& get() const {
    if (handle == nullptr) throw nb::value_error("the sequence is closed");
    return *handle;
  }
  // Returns a reference for calls that release the GIL, because another thread may close the handle during them.
  std::shared_ptr<client::Sequence> share() const {
    get();
    return handle;
  }
};

// Everything that a step refers to. To be destroyed under the GIL.
struct StepMemory {
  Tasks tasks;
  Rows rows;
  std::vector<std::shared_ptr<const SharedRows>> on_device;
  Masks masks;
  nb::list sequences;
  Readiness ready;
  std::shared_ptr<ResultsMemory> results = nullptr;  // null: no results in device memory
  nb::object callback = {};

  // Blocks until the logits are written; with a ready word, names the word in the batch instead. Called without the
  // GIL.
  absl::Status WaitFor(uint64_t stream, client::Batch* batch) const {
    if (ready.is_given()) return ready.Apply(stream, batch);
    if (on_device.empty()) return absl::OkStatus();
    return on_device.front()->rows->WaitFor(reinterpret_cast<CUstream_st*>(stream));
  }
};

// A step whose caller waits for it, unless a signal's handler raises an exception. Without one the caller destroys the
// memory. After one the later of the caller and the answer does, under the GIL.
struct AwaitedStep {
  explicit AwaitedStep(std::unique_ptr<StepMemory> read) : memory(std::move(read)) {}
  std::unique_ptr<StepMemory> memory;
  std::vector<client::RowResult> results;
  std::atomic<bool> one_is_over = false;
};

class Client {
 public:
  Client(std::unique_ptr<client::Client> client, std::optional<client::VocabularyShard> shard)
      : client_(client.release(), DeleteWithoutGil()), shard_(shard) {}
  ~Client() { Close(); }

  client::Client& get() const {
    if (home_.is_left()) throw nb::value_error("the client is the parent's: a process that was forked makes its own");
    if (client_ == nullptr) throw nb::value_error("the client is closed");
    return *client_;
  }
  // Ends steps in flight with STEP_CANCELLED. Waits for calls of other threads, which need the GIL. Does nothing in a
  // process that was forked.
  void Close() {
    std::shared_ptr<client::Client> client = std::move(client_);
    nb::gil_scoped_release released;
    // A callback's thread cannot wait for itself to end.
    if (InCallback::here()) std::thread([last = std::move(client)]() mutable { last.reset(); }).detach();
    client.reset();
  }
  // Returns a reference, which must be dropped without the GIL: if another thread has closed the client meanwhile, it
  // is the last one and ends the client.
  std::shared_ptr<client::Client> share() const { return client_; }

  const std::optional<client::VocabularyShard>& shard() const { return shard_; }
  const SharedRowsTable& shared_rows() const { return shared_rows_; }
  DeviceMemory ShareDevice(const CudaRows& rows) {
    get();
    return shared_rows_.Share(client_, rows);
  }

 private:
  const Home home_;
  std::shared_ptr<client::Client> client_;
  SharedRowsTable shared_rows_;
  const std::optional<client::VocabularyShard> shard_;
};

client::TransportKind ParseTransport(const std::string& name) {
  if (name == "auto") return client::TransportKind::kAuto;
  if (name == "grpc") return client::TransportKind::kGrpc;
  if (name == "ring") return client::TransportKind::kRing;
  throw nb::value_error("transport: \"auto\", \"grpc\" or \"ring\"");
}

const char* TransportName(const client::TransportInUse& transport) {
  if (transport.in_process) return "in_process";
  return transport.kind == client::TransportKind::kRing ? "ring" : "grpc";
}

// The fields of sortition.Shard, in their order.
using Shard = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;

client::Client::RowMemory Allocate(const Client& self, uint64_t bytes) {
  self.get();
  auto client = self.share();
  return MadeWithoutGil([&] {
    auto memory = client->AllocateRows(bytes);
    client.reset();
    return memory;
  });
}

// Returns writable bytes, which live as long as an array refers to them, and whether a server shares them.
nb::tuple AllocateRows(const Client& self, uint64_t bytes) {
  client::Client::RowMemory memory = Allocate(self, bytes);
  std::byte* const bytes_there = memory.data.get();
  using Owner = std::shared_ptr<std::shared_ptr<std::byte>>;
  auto* const owner = new Owner(new std::shared_ptr<std::byte>(std::move(memory.data)), DeleteWithoutGil());
  const nb::capsule capsule(owner, [](void* data) noexcept { delete static_cast<Owner*>(data); });
  const size_t shape[] = {static_cast<size_t>(bytes)};
  return nb::make_tuple(nb::ndarray<nb::numpy, uint8_t>(bytes_there, 1, shape, capsule), memory.shared);
}

Client* Connect(std::vector<std::string> targets, std::string fallback, std::string worker_session, std::string name,
                std::optional<nb::dict> tls, double connect_timeout, double keepalive, double default_timeout,
                double backoff_initial, double backoff_max, uint32_t in_process_threads, double fallback_stay,
                uint64_t message_bytes, uint32_t message_rows, const std::string& transport,
                uint64_t shared_memory_bytes, std::optional<uint32_t> memory_server_user, std::string token,
                std::optional<Shard> shard, const std::string& rows, bool ignore_unknown_fields) {
  client::ClientOptions options;
  options.ignore_unknown_fields = ignore_unknown_fields;
  options.targets = std::move(targets);
  if (fallback != "none" && fallback != "in_process") {
    throw nb::value_error("fallback: \"none\" or \"in_process\"");
  }
  if (fallback == "in_process") options.in_process = client::InProcessEngine(in_process_threads);
  options.worker_session = std::move(worker_session);
  options.name = std::move(name);
  if (tls) {
    options.transport.tls.emplace();
    const auto text = [&](const char* key) { return tls->contains(key) ? nb::cast<std::string>((*tls)[key]) : ""; };
    options.transport.tls->root_certificates = text("root_certificates");
    options.transport.tls->certificate_chain = text("certificate_chain");
    options.transport.tls->private_key = text("private_key");
    options.transport.tls->server_name = text("server_name");
  }
  options.transport.token = std::move(token);
  options.retry.connect_timeout = ToDuration("connect_timeout", connect_timeout);
  options.transport.keepalive = ToDuration("keepalive", keepalive);
  options.default_timeout = ToDuration("default_timeout", default_timeout);
  options.retry.backoff = {ToDuration("backoff_initial", backoff_initial), ToDuration("backoff_max", backoff_max)};
  options.retry.fallback_stay = ToDuration("fallback_stay", fallback_stay);
  options.limits.message_bytes = message_bytes;
  options.limits.message_rows = message_rows;
  options.transport.kind = ParseTransport(transport);
  options.transport.shared_memory_bytes = shared_memory_bytes;
  options.transport.memory_server_user = memory_server_user;
  const auto row_options = client::RowFormOptions::Parse(rows);
  if (!row_options) throw nb::value_error("rows: \"auto\", \"full\", \"compact\" or \"compact(COUNT)\"");
  options.rows = *row_options;
  if (shard) {
    options.shard = std::apply([](auto... fields) { return client::VocabularyShard{fields...}; }, *shard);
  }
  const std::optional<client::VocabularyShard> part = options.shard;

  return new Client(MadeWithoutGil([&] { return client::Client::Connect(std::move(options)); }), part);
}

// client::Rewound: its count, and its bans as pairs of a position and a token.
using RewoundPairs = std::pair<uint32_t, std::vector<std::pair<uint32_t, uint32_t>>>;

Sequence* Wrap(std::unique_ptr<client::Sequence> opened) {
  return new Sequence{std::shared_ptr<client::Sequence>(opened.release(), DeleteWithoutGil())};
}

Sequence* Open(const Client& self, nb::bytes message, std::vector<uint32_t> prompt,
               std::optional<uint32_t> start_position, uint32_t turns, bool receipts,
               const std::optional<nb::bytes>& policy, const RewoundPairs& rewound) {
  self.get();
  client::SequenceOptions options = ParseSequence(message, std::move(prompt), start_position);
  options.turns = turns;
  options.rewound.count = rewound.first;
  for (const auto& [position, token] : rewound.second) options.rewound.bans.push_back({position, token});
  if (policy && !options.policy.emplace().ParseFromArray(policy->data(), static_cast<int>(policy->size()))) {
    throw nb::value_error("policy: the bytes are no sortition.v1.PolicyEffect");
  }
  if (receipts) options.receipts = std::make_shared<client::ReceiptLog>();
  const std::shared_ptr<client::ReceiptLog> log = options.receipts;
  auto client = self.share();
  Sequence* const sequence = Wrap(MadeWithoutGil([&] {
    auto opened = client->Open(std::move(options));
    client.reset();
    return opened;
  }));
  sequence->receipts = log;
  return sequence;
}

// Returns the effect of the operator's policy as a message of the Python package.
nb::object PolicyOf(const Sequence& self) {
  const std::string bytes = self.get().policy().SerializeAsString();
  const nb::object kind = nb::module_::import_("sortition.v1.sampling_pb2").attr("PolicyEffect");
  return kind.attr("FromString")(nb::bytes(bytes.data(), bytes.size()));
}

client::ReceiptLog& ReceiptsOf(const Sequence& self) {
  if (self.receipts == nullptr) throw nb::value_error("the sequence was opened without receipts");
  return *self.receipts;
}

Sequence* Fork(const Client& self, const Sequence& parent, nb::bytes message, std::optional<uint32_t> position) {
  self.get();
  client::SequenceOptions options = ParseSequence(message, {}, std::nullopt);
  const std::shared_ptr<const client::Sequence> from = parent.share();
  auto client = self.share();
  return Wrap(MadeWithoutGil([&] {
    auto opened = client->Fork(*from, std::move(options), position);
    client.reset();
    return opened;
  }));
}

// Reads a step's arguments before anything is sent. Masks and drafts' probabilities cover whole rows, also on a rank
// whose logits are a shard.
StepMemory ReadStep(const Client& self, nb::list sequences, nb::handle logits, Tasks tasks, nb::handle allowed,
                    const std::optional<std::string>& dtype, nb::handle ready) {
  const size_t count = nb::len(sequences);
  Rows rows = ReadRows(logits, count, tasks.positions(), dtype, Cuda::kTaken);
  auto on_device = self.shared_rows().Find(rows, tasks.positions());
  const uint32_t whole = self.shard() ? self.shard()->vocabulary_size : rows.width;
  tasks.CheckWidth(whole);
  Masks masks = ReadMasks(allowed, count, tasks.masks(), whole);
  return {std::move(tasks), std::move(rows),      std::move(on_device),
          std::move(masks), std::move(sequences), Readiness::Read(ready)};
}

// Makes a batch that refers to `memory`. `handles` keep the sequences alive until the step has been submitted.
client::Batch MakeBatch(const Client& self, const StepMemory& memory,
                        std::vector<std::shared_ptr<client::Sequence>>* handles) {
  const Rows& rows = memory.rows;
  if (self.shard() && !rows.rows.empty() && rows.width != self.shard()->tokens) {
    throw nb::value_error(
        absl::StrCat("logits: rows of ", rows.width, " elements; shard.tokens is ", self.shard()->tokens).c_str());
  }
  client::Batch batch{rows.dtype, rows.width, {}};
  batch.draft_dtype = memory.tasks.draft_dtype();
  batch.rows.reserve(rows.rows.size());
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    client::Sequence& sequence = *handles->emplace_back(nb::cast<Sequence&>(memory.sequences[i]).share());
    if (!self.shard() && sequence.vocabulary_size() != rows.width) {
      throw nb::value_error(absl::StrCat("logits: rows of ", rows.width, " elements; the vocabulary of ",
                                         sequence.request_id(), " has ", sequence.vocabulary_size())
                                .c_str());
    }
    client::Row& row = batch.rows.emplace_back(memory.tasks.RowOf(i));
    row.sequence = &sequence;
    row.logits = rows.rows[i];
    if (!memory.masks.rows.empty()) row.allowed_bits = memory.masks.rows[i];
  }
  return batch;
}

client::StepOptions MakeOptions(std::optional<double> timeout, int32_t priority, std::string traceparent) {
  client::StepOptions options;
  if (timeout) options.timeout = ToDuration("timeout", *timeout);
  options.priority = priority;
  options.traceparent = std::move(traceparent);
  return options;
}

// Blocks for the step. `stream` is that of the logits.
std::vector<client::RowResult> Await(const Client& self, StepMemory memory, const client::StepOptions& options,
                                     uint64_t stream) {
  const auto step = std::make_shared<AwaitedStep>(std::make_unique<StepMemory>(std::move(memory)));
  std::vector<std::shared_ptr<client::Sequence>> handles;
  client::Batch batch = MakeBatch(self, *step->memory, &handles);
  const auto done = [step](std::vector<client::RowResult> results) {
    step->results = std::move(results);
    if (!step->one_is_over.exchange(true)) return;
    const InCallback scope;
    nb::gil_scoped_acquire acquired;
    step->memory.reset();
  };
  const auto no_handler_raises = [] {
    nb::gil_scoped_acquire acquired;
    return PyErr_CheckSignals() == 0;
  };
  auto client = self.share();
  const bool is_answered = MadeWithoutGil([&] {
    const absl::Status status = step->memory->WaitFor(stream, &batch);
    auto answered = status.ok() ? client->StepWhile(batch, options, done, no_handler_raises) : status;
    client.reset();
    return answered;
  });
  if (!is_answered) {
    const nb::python_error raised;
    if (step->one_is_over.exchange(true)) step->memory.reset();
    throw raised;
  }
  step->memory.reset();
  return std::move(step->results);
}

nb::object Step(const Client& self, nb::list sequences, nb::handle logits, nb::tuple lists, nb::handle allowed,
                std::optional<std::string> dtype, std::optional<double> timeout, int32_t priority,
                std::string traceparent, uint64_t stream, nb::handle ready) {
  self.get();
  Tasks tasks(std::move(lists), nb::len(sequences));
  StepMemory memory = ReadStep(self, std::move(sequences), logits, std::move(tasks), allowed, dtype, ready);
  return ToPython(Await(self, std::move(memory), MakeOptions(timeout, priority, std::move(traceparent)), stream));
}

nb::tuple DrawTokens(const Client& self, nb::list sequences, nb::handle logits, nb::handle allowed,
                     std::optional<std::string> dtype, std::optional<double> timeout, uint64_t stream) {
  self.get();
  StepMemory memory = ReadStep(self, std::move(sequences), logits, Tasks(), allowed, dtype, nb::none());
  return ToTokens(Await(self, std::move(memory), MakeOptions(timeout, 0, ""), stream));
}

void StepAsync(const Client& self, nb::list sequences, nb::handle logits, nb::tuple lists, nb::handle allowed,
               std::optional<std::string> dtype, std::optional<double> timeout, int32_t priority,
               std::string traceparent, uint64_t stream, nb::handle ready, const CudaResults* results,
               nb::object callback) {
  self.get();
  Tasks tasks(std::move(lists), nb::len(sequences));
  auto memory = std::make_unique<StepMemory>(
      ReadStep(self, std::move(sequences), logits, std::move(tasks), allowed, dtype, ready));
  if (results != nullptr) memory->results = results->memory;
  memory->callback = std::move(callback);
  std::vector<std::shared_ptr<client::Sequence>> handles;
  client::Batch batch = MakeBatch(self, *memory, &handles);
  const client::StepOptions options = MakeOptions(timeout, priority, std::move(traceparent));
  // Destroyed under the GIL in every case: here if the batch is refused, otherwise in the callback.
  StepMemory* const borrowed = memory.get();
  absl::Status status;
  {
    auto client = self.share();
    nb::gil_scoped_release released;
    const auto done = [borrowed](std::vector<client::RowResult> results) {
      const InCallback scope;
      nb::gil_scoped_acquire acquired;
      const std::unique_ptr<StepMemory> mine(borrowed);
      if (mine->results != nullptr) mine->results->EndStep();
      try {
        mine->callback(ToPython(std::move(results)));
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("sortition: the callback of a step");
      }
    };
    status = borrowed->WaitFor(stream, &batch);
    if (status.ok()) {
      status = borrowed->results == nullptr ? client->StepAsync(batch, options, done)
                                            : borrowed->results->StepAsync(client.get(), batch, options, stream, done);
    }
    client.reset();
  }
  if (!status.ok()) Raise(status);
  memory.release();  // NOLINT: the callback owns it
}

void Check(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}

}  // namespace

void BindClient(nb::module_& module) {
  nb::class_<Sequence>(module, "Sequence", "The caller's handle of one sequence. Thread-safe.")
      .def_prop_ro("request_id", [](const Sequence& self) { return self.get().request_id(); })
      .def_prop_ro("vocabulary_size", [](const Sequence& self) { return self.get().vocabulary_size(); })
      .def_prop_ro(
          "seed", [](const Sequence& self) { return self.get().seed(); },
          "The seed in use. Keep it secret: seed and logits together determine the text.")
      .def_prop_ro(
          "stateful", [](const Sequence& self) { return self.get().stateful(); },
          "True if some option looks at the history.")
      .def_prop_ro(
          "position", [](const Sequence& self) { return self.get().position(); },
          "Number of tokens in prompt and output so far.")
      .def_prop_ro(
          "tokens", [](const Sequence& self) { return self.get().tokens(); },
          "The tokens of prompt and output; empty if the sequence is not stateful.")
      .def_prop_ro(
          "turns", [](const Sequence& self) { return self.get().turns(); },
          "Number of times that the text was cut or scored, for a rank that continues it in a new process.")
      .def_prop_ro(
          "rewound",
          [](const Sequence& self) {
            const client::Rewound rewound = self.get().rewound();
            RewoundPairs pairs{rewound.count, {}};
            for (const client::BannedAt& ban : rewound.bans) pairs.second.emplace_back(ban.position, ban.token);
            return pairs;
          },
          "What banned phrases have left, for a process that continues the text: the number of rewinds, and pairs of a "
          "position and a token that is banned there, sorted.")
      .def_prop_ro("policy", &PolicyOf, nb::sig("def policy(self) -> sortition.v1.sampling_pb2.PolicyEffect"),
                   "What the policy of the service's operator has changed: `applied` parameters, names of `removed` "
                   "fields, `watermark_key_id` of the key that marks the text. Empty without a policy.")
      .def(
          "replace_last", [](Sequence& self, uint32_t token) { Check(self.get().ReplaceLast(token)); },
          nb::arg("token"))
      .def(
          "append", [](Sequence& self, const std::vector<uint32_t>& tokens) { Check(self.get().Append(tokens)); },
          nb::arg("tokens"))
      .def(
          "truncate", [](Sequence& self, uint32_t position) { Check(self.get().Truncate(position)); },
          nb::arg("position"))
      .def(
          "close", [](Sequence& self) { self.handle.reset(); }, "Tells the service to forget the sequence.")
      .def(
          "take_receipts",
          [](const Sequence& self) {
            const std::string records = ReceiptsOf(self).Take();
            return nb::bytes(records.data(), records.size());
          },
          "Returns the receipts that have come since the last call (open(receipts=True)). All of them in their order "
          "are a file for `sortitionctl verify`.")
      .def(
          "await_receipts",
          [](const Sequence& self, double timeout) {
            client::ReceiptLog& log = ReceiptsOf(self);
            const absl::Duration longest = ToDuration("timeout", timeout);
            nb::gil_scoped_release release;
            return log.AwaitEnd(longest);
          },
          nb::arg("timeout") = 10.0, "After close: waits for the last signature. Returns False if it has not come.")
      .def_prop_ro(
          "seed_line", [](const Sequence& self) { return ReceiptsOf(self).SeedLine(); },
          "The line that opens the receipts' commitment to the seed. A secret until it is published.")
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](Sequence& self, nb::args) { self.handle.reset(); });

  nb::class_<Client>(module, "Client")
      .def(nb::new_(&Connect), nb::arg("targets"), nb::kw_only(), nb::arg("fallback"), nb::arg("worker_session"),
           nb::arg("name"), nb::arg("tls").none(), nb::arg("connect_timeout"), nb::arg("keepalive"),
           nb::arg("default_timeout"), nb::arg("backoff_initial"), nb::arg("backoff_max"),
           nb::arg("in_process_threads"), nb::arg("fallback_stay"), nb::arg("message_bytes"), nb::arg("message_rows"),
           nb::arg("transport"), nb::arg("shared_memory_bytes"), nb::arg("memory_server_user").none(), nb::arg("token"),
           nb::arg("shard").none(), nb::arg("rows"), nb::arg("ignore_unknown_fields"))
      .def("allocate_rows", &AllocateRows, nb::arg("bytes"))
      .def("share_device", &Client::ShareDevice, nb::arg("rows"))
      .def("ready", [](const Client& self) { return MakeReady(Allocate(self, sizeof(uint32_t))); })
      .def(
          "cuda_ready",
          [](const Client& self, int device) {
            return MakeCudaReady(device, Allocate(self, client::CudaReady::kBytes));
          },
          nb::arg("device"))
      .def("open", &Open, nb::arg("message"), nb::arg("prompt"), nb::arg("start_position").none(), nb::arg("turns"),
           nb::arg("receipts"), nb::arg("policy").none(), nb::arg("rewound"))
      .def("fork", &Fork, nb::arg("parent"), nb::arg("message"), nb::arg("position").none())
      .def("step", &Step, nb::arg("sequences"), nb::arg("logits"), nb::arg("tasks"), nb::arg("allowed").none(),
           nb::arg("dtype").none(), nb::arg("timeout").none(), nb::arg("priority"), nb::arg("traceparent"),
           nb::arg("stream"), nb::arg("ready").none())
      .def("draw_tokens", &DrawTokens, nb::arg("sequences"), nb::arg("logits"), nb::arg("allowed").none(),
           nb::arg("dtype").none(), nb::arg("timeout").none(), nb::arg("stream"))
      .def("step_async", &StepAsync, nb::arg("sequences"), nb::arg("logits"), nb::arg("tasks"),
           nb::arg("allowed").none(), nb::arg("dtype").none(), nb::arg("timeout").none(), nb::arg("priority"),
           nb::arg("traceparent"), nb::arg("stream"), nb::arg("ready").none(), nb::arg("results").none(),
           nb::arg("callback"))
      .def("close", &Client::Close)
      .def_prop_ro("worker_session", [](const Client& self) { return self.get().worker_session(); })
      .def_prop_ro("transport", [](const Client& self) { return TransportName(self.get().transport_in_use()); })
      .def_prop_ro("row_memory", [](const Client& self) { return self.get().transport_in_use().row_memory; })
      .def_prop_ro("transport_note", [](const Client& self) { return self.get().transport_in_use().note; })
      .def_prop_ro("in_process", [](const Client& self) { return self.get().in_process(); })
      .def_prop_ro("ignored_fields", [](const Client& self) { return self.get().ignored_fields(); });
}

}  // namespace sortition::python
