// A refusal for an exceeded limit names the limit.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/client_accounts.h"
#include "service/limits.h"
#include "service/memory/region_table.h"
#include "tests/stream/stateful_stream.h"
#include "tests/support/fake_clock.h"

namespace sortition::service::session_limits_test {
namespace {

constexpr uint32_t kVocabulary = kStatefulVocabulary;

// Returns the first error in a message; null if there is none.
const v1::Error* ErrorIn(const google::protobuf::Message& message) {
  if (message.GetDescriptor() == v1::Error::descriptor()) return static_cast<const v1::Error*>(&message);
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const v1::Error* const error = ErrorIn(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                                  : reflection.GetMessage(message, field));
      if (error != nullptr) return error;
    }
  }
  return nullptr;
}

// A stream under limits of the test's choice.
struct Server {
  explicit Server(const Limits& limits = {}) : engine(TestEngine::OnCpu(limits)) {}

  // Sends a message and returns the limit that its refusal names.
  std::string LimitOf(const v1::StreamRequest& message) {
    worker.Send(message);
    const auto answer = worker.Await([](const auto& response) { return ErrorIn(response) != nullptr; });
    return answer ? ErrorIn(*answer)->limit() : "nothing is refused";
  }
  std::string LimitOf(const v1::OpenSequence& open) { return LimitOf(testing::Message(open)); }

  TestEngine engine;
  StreamWorker worker{engine.get()};
};

std::string OfOpen(const Limits& limits, const std::function<void(v1::OpenSequence*)>& change) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  change(&open);
  return Server(limits).LimitOf(open);
}

std::string OfParameters(const Limits& limits, const std::function<void(v1::SamplingParameters*)>& change) {
  return OfOpen(limits, [&](v1::OpenSequence* open) { change(open->mutable_parameters()); });
}

// A step of one row.
std::string OfStep(const Limits& limits, const std::function<void(v1::StreamRequest*, v1::StepRow*)>& change) {
  Server server(limits);
  const v1::OpenSequence open = StatefulOpen("a", 1);
  server.worker.MustOpen(open);
  StepBuilder step(1, kVocabulary);
  AddPeak(&step, "a", 1, PlainSequence(open), 9);
  v1::StreamRequest message = step.Build();
  change(&message, message.mutable_step()->mutable_rows(0));
  return server.LimitOf(message);
}

v1::StreamRequest MaskOf(uint64_t id) {
  v1::StreamRequest request;
  v1::UploadMask& upload = *request.mutable_upload_mask();
  upload.set_mask_id(id);
  upload.set_vocabulary_size(32);
  upload.mutable_mask()->set_rows(1);
  upload.mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  request.add_payloads("\1\1\1\1");
  return request;
}

// Two masks of 4 bytes.
std::string OfMasks(const Limits& limits) {
  Server server(limits);
  server.worker.Send(MaskOf(1));
  return server.LimitOf(MaskOf(2));
}

std::string OfCompactRow(const Limits& limits) {
  return OfStep(limits, [](v1::StreamRequest* message, v1::StepRow* row) {
    v1::LogitsTensor& logits = *message->mutable_step()->mutable_logits();
    logits.clear_source();
    logits.clear_tensor_rows();
    logits.mutable_pairs()->mutable_inline_()->set_payload(0);
    row->add_compact()->set_first(10);
  });
}

// Registers regions of two pages each on one connection.
std::string OfRegions(const Limits& limits) {
  Server server(limits);
  const auto connection = std::get<std::shared_ptr<MemoryConnection>>(server.engine->regions().Connect([] {}));
  for (int i = 0; i < 2; ++i) {
    const auto made = connection->Register(8192);
    if (const auto* refusal = std::get_if<Refusal>(&made)) return refusal->limit;
  }
  return "nothing is refused";
}

std::string OfClient(const Limits& limits, const std::function<std::optional<Refusal>(ClientAccount*)>& take) {
  testing::FakeClock clock;
  ClientAccount account("a", limits, &clock);
  take(&account);
  const std::optional<Refusal> refusal = take(&account);
  return refusal ? refusal->limit : "nothing is refused";
}

v1::OpenSequence WithHistory(const char* id, int tokens) {
  v1::OpenSequence open = StatefulOpen(id, 1);
  open.mutable_history()->mutable_tokens()->Resize(tokens, 3);
  return open;
}

std::string OfTwoHistories(const Limits& limits, int tokens) {
  Server server(limits);
  server.worker.Send(testing::Message(WithHistory("a", tokens)));
  return server.LimitOf(WithHistory("b", tokens));
}

using Tokens = google::protobuf::RepeatedField<uint32_t>;

// One function for each limit exceeds it, and returns the limit that the refusal names.
const std::map<std::string, std::function<std::string()>>& Provocations() {
  static const std::map<std::string, std::function<std::string()>> provocations = {
      {"max_message_bytes",
       [] {
         return OfParameters({.max_message_bytes = 400},
                             [](auto* p) { p->mutable_allowed_token_ids()->Resize(400, 0); });
       }},
      {"stream_sequences", [] { return OfTwoHistories({.stream_sequences = 1}, 3); }},
      {"max_step_positions",
       [] {
         return OfStep({.max_step_positions = 1},
                       [](auto*, v1::StepRow* row) { row->mutable_verify_draft()->add_draft_tokens(1); });
       }},
      {"max_queued_rows",
       [] {
         return OfStep({.max_queued_rows = 1}, [](auto* message, v1::StepRow* row) {
           message->set_payloads(0, message->payloads(0) + message->payloads(0));
           message->mutable_step()->mutable_logits()->set_tensor_rows(2);
           row->mutable_verify_draft()->add_draft_tokens(1);
           row->mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
         });
       }},
      {"max_vocabulary", [] { return OfOpen({.max_vocabulary = 63}, [](auto*) {}); }},
      {"max_compact_tokens", [] { return OfCompactRow({.max_compact_tokens = 9}); }},
      {"max_compact_bytes", [] { return OfCompactRow({.max_compact_bytes = 79}); }},
      {"stream_masks", [] { return OfMasks({.stream_masks = 1}); }},
      {"stream_mask_bytes", [] { return OfMasks({.stream_mask_bytes = 7}); }},
      {"max_mask_bytes", [] { return OfMasks({.max_mask_bytes = 7}); }},
      {"max_memory_connections",
       [] {
         Server server(Limits{.max_memory_connections = 0});
         return std::get<Refusal>(server.engine->regions().Connect([] {})).limit;
       }},
      {"max_memory_bytes", [] { return OfRegions({.max_memory_bytes = 8192}); }},
      {"connection_memory_bytes", [] { return OfRegions({.connection_memory_bytes = 8192}); }},
      {"connection_regions", [] { return OfRegions({.connection_regions = 1}); }},
      {"max_clients",
       [] {
         testing::FakeClock clock;
         ClientAccounts accounts({.max_clients = 1}, &clock);
         const auto first = accounts.OpenStream("a");
         return std::get<Refusal>(accounts.OpenStream("b")).limit;
       }},
      {"client_streams",
       [] { return OfClient({.client_streams = 1}, [](auto* client) { return client->TakeStream(); }); }},
      {"client_regions",
       [] { return OfClient({.client_regions = 1}, [](auto* client) { return client->TakeRegion(1, "f"); }); }},
      {"client_memory_bytes",
       [] { return OfClient({.client_memory_bytes = 1}, [](auto* client) { return client->TakeRegion(1, "f"); }); }},
      {"client_rows_per_second",
       [] { return OfClient({.client_rows_per_second = 1}, [](auto* client) { return client->Charge(1, 0, "f"); }); }},
      {"client_bytes_per_second",
       [] { return OfClient({.client_bytes_per_second = 1}, [](auto* client) { return client->Charge(0, 1, "f"); }); }},
      {"client_work_per_second",
       [] {
         return OfClient({.client_work_per_second = 1}, [](auto* client) {
           client->Spend(2);
           return client->Charge(0, 0, "f");
         });
       }},
      {"max_sequences", [] { return OfTwoHistories({.max_sequences = 1}, 3); }},
      {"max_state_bytes", [] { return OfTwoHistories({.max_state_bytes = 20000}, 4000); }},
      {"replay_tokens_per_second", [] { return OfTwoHistories({.replay_tokens_per_second = 1000}, 5000); }},
      {"max_history", [] { return OfTwoHistories({.max_history = 4}, 5); }},
      {"kept_history",
       [] {
         return OfStep({.kept_history = 1}, [](auto*, v1::StepRow* row) {
           for (const uint32_t token : {1u, 2u}) row->add_append_tokens(token);
         });
       }},
      {"max_listed_tokens",
       [] {
         return OfParameters({.max_listed_tokens = 1}, [](auto* p) {
           for (const uint32_t token : {1u, 2u}) p->add_banned_token_ids(token);
         });
       }},
      {"max_name_bytes", [] { return OfOpen({}, [](auto* open) { open->set_model(std::string(129, 'm')); }); }},
      {"max_trace_state_bytes",
       [] {
         return OfStep({}, [](v1::StreamRequest* message, auto*) {
           v1::TraceContext& trace = *message->mutable_step()->mutable_trace();
           trace.set_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
           trace.set_tracestate(std::string(513, 'a'));
         });
       }},
      {"max_string_tokens",
       [] { return OfParameters({}, [](auto* p) { p->add_bad_words()->mutable_tokens()->Resize(1025, 0); }); }},
      {"max_tag_tokens",
       [] { return OfParameters({}, [](auto* p) { p->add_phases()->mutable_begin()->Resize(33, 0); }); }},
      {"max_phases",
       [] {
         return OfParameters({}, [](auto* p) {
           for (int i = 0; i < 9; ++i) p->add_phases();
         });
       }},
      {"max_choice_index", [] { return OfOpen({}, [](auto* open) { open->set_choice_index(65536); }); }},
      {"max_draw_salt", [] { return OfStep({}, [](auto*, v1::StepRow* row) { row->set_draw_salt(65536); }); }},
      {"max_draft_tokens",
       [] {
         return OfStep({}, [](auto* message, v1::StepRow* row) {
           message->mutable_step()->mutable_logits()->set_tensor_rows(1);
           row->mutable_verify_draft()->mutable_draft_tokens()->Resize(65, 0);
         });
       }},
      {"max_score_tokens",
       [] {
         return OfStep({}, [](auto* message, v1::StepRow* row) {
           message->mutable_step()->mutable_logits()->set_tensor_rows(1);
           row->mutable_score()->mutable_tokens()->Resize(129, 0);
         });
       }},
      {"max_top_logprobs", [] { return OfParameters({}, [](auto* p) { p->mutable_raw_logprobs()->set_top(1001); }); }},
      {"max_priority",
       [] { return OfStep({}, [](auto* message, auto*) { message->mutable_step()->set_priority(-101); }); }},
      {"max_field_bytes",
       [] {
         return OfStep(
             {}, [](auto*, v1::StepRow* row) { row->mutable_score()->mutable_tokens()->Resize(kMaxFieldBytes, 0); });
       }},
      {"max_message_parts",
       [] {
         return OfOpen({}, [](v1::OpenSequence* open) {
           for (uint32_t i = 0; i < kMaxMessageParts; ++i) open->mutable_parameters()->add_bad_words();
         });
       }},
      {"max_shards",
       [] {
         return OfStep({}, [](auto* message, auto*) {
           message->mutable_step()->mutable_logits()->mutable_shard()->set_count(257);
         });
       }},
      {"max_payloads",
       [] {
         return OfStep({}, [](v1::StreamRequest* message, auto*) {
           while (message->payloads_size() < 17) message->add_payloads("");
         });
       }},
      {"max_answer_bytes",
       [] {
         v1::StreamRequest message;
         v1::BringAnswer& bring = *message.mutable_bring_answer();
         bring.mutable_asked()->set_request_id("a");
         bring.mutable_result()->mutable_draw()->mutable_checkpoint()->append(kMaxAnswerBytes, 'r');
         return Server().LimitOf(message);
       }},
  };
  return provocations;
}

// No refusal names these: they end streams and connections, forget, make a worker wait, or ask for a whole row. A field
// beyond max_ignored_fields is refused as an unknown one.
const std::set<std::string>& Silent() {
  static const std::set<std::string> silent = {
      "max_connections",    "stream_unanswered_bytes", "stream_unanswered_rows", "stalled_write",
      "max_stream_age",     "max_shard_answer_bytes",  "sequence_ttl",           "replay_guard",
      "max_ignored_fields", "min_ping_interval",       "max_required_tokens",
  };
  return silent;
}

// By the limit: the test that provokes it, because it takes sockets, devices, time or many steps.
const std::map<std::string, std::string>& Elsewhere() {
  static const std::map<std::string, std::string> elsewhere = {
      {"max_received_bytes", "StreamTest.FullServerReadsNoStream"},
      {"max_streams", "StreamTest.StreamsBeyondMaxAreRefused"},
      {"client_received_bytes", "StreamTest.NoStreamOfFullClientIsRead"},
      {"client_answer_bytes", "SampleTest.UnreadAnswersAreBounded"},
      {"max_watchers", "InformationTest.WatchersAreBounded"},
      {"connection_watchers", "HealthTest.WatchersOfAConnectionAreBounded"},
      {"max_queue_time", "AdmissionTest.TooLongExpectedWaitIsRefusedAtOnce"},
      {"shard_wait", "SessionShards.MissingShardTimesOutByName"},
      {"ready_wait", "SessionReady.MissingLogitsAreNamedNothingIsLost"},
      {"max_unready_steps", "SessionReadyLimits.WaitingStepsBeyondLimitAreRefused"},
      {"max_rings", "SharedMemoryTest.AutoWithoutFreeRingStaysOnStream"},
      {"connection_device_bytes", "DeviceMemoryOff.TakesNoDescriptorUnlessEnabled"},
      {"client_sequences", "ClientSequencesTest.TenantEvictsOnlyItsOwnIdleSequences"},
      {"max_piece_work", "SequenceRules.LongHistoryIsNotReadAnew"},
      {"max_message_work", "SequenceRules.EditsOfAMessageAreBounded"},
      {"max_sample_bytes", "SampleRunTest.RowBeyondTheAnswersBytesIsRefused"},
      {"max_repeated_bytes", "SequenceRules.LongResultIsNotKept"},
  };
  return elsewhere;
}

TEST(SessionLimitNames, EveryLimitIsNamedByTheRefusalOfWhatExceedsIt) {
  for (const LimitDescription& limit : DescribeLimits({})) {
    const std::string name(limit.name);
    const auto provocation = Provocations().find(name);
    const int places = (provocation != Provocations().end()) + Silent().contains(name) + Elsewhere().contains(name);
    EXPECT_EQ(places, 1) << name << " has no provocation";
    if (provocation == Provocations().end()) continue;
    const std::string named = provocation->second();
    EXPECT_TRUE(named.starts_with(name + " ")) << name << ": " << named;
  }
}

}  // namespace
}  // namespace sortition::service::session_limits_test
