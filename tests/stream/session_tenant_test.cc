// Two tenants who know all names of each other: worker session, request ids, epochs, ids of masks and regions,
// checkpoints. Neither can use anything of the other.

#include "service/memory/region_table.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_tenant_test {
namespace {

constexpr uint32_t kVocabulary = 64;

class SessionTenant : public ::testing::Test {
 protected:
  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker owner_{engine_.get(), {.tenant = "owner"}};
  StreamWorker again_{engine_.get(), {.tenant = "owner"}};
  StreamWorker stranger_{engine_.get(), {.tenant = "stranger"}};
};

TEST_F(SessionTenant, SequenceIsItsTenantsAlone) {
  const v1::OpenSequence open = StatefulOpen("a", 5);
  PlainSequence plain(open);
  owner_.MustOpen(open);
  // It can be neither taken over, nor found, nor stepped, forked or closed.
  ExpectError(stranger_.Open(Reopened(open, 99)).error(), Reason::kHistoryRequired, "open.history");
  ExpectError(stranger_.RunOne(PeakStep(1, "a", 1, plain, 20)), Reason::kUnknownSequence, "step.rows[0].request_id");
  v1::StreamRequest fork;
  fork.mutable_fork()->set_parent_request_id("a");
  *fork.mutable_fork()->mutable_child() = Reopened(StatefulOpen("b", 1), 1);
  ExpectError(stranger_.Fork(fork).error(), Reason::kUnknownSequence, "fork.parent_request_id");
  v1::StreamRequest close;
  close.mutable_close()->set_request_id("a");
  close.mutable_close()->set_epoch(5);
  EXPECT_FALSE(stranger_.Close(close).was_known());
  // The stranger's sequence of the same name is another sequence.
  stranger_.MustOpen(StatefulOpen("a", 99));
  ASSERT_EQ(engine_->sequences().live_sequences(), 2u);

  EXPECT_EQ(owner_.RunOne(PeakStep(1, "a", 1, plain, 20)).draw().token(), 20u);
  plain.Append(20);
  EXPECT_EQ(again_.MustOpen(Reopened(open, 6)).history_hash(), plain.hash()) << "while the owner finds it";
}

TEST_F(SessionTenant, CheckpointIsItsTenantsAlone) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->mutable_mirostat()->set_version(2);
  open.mutable_parameters()->mutable_mirostat()->set_tau(2);
  for (StreamWorker* worker : {&owner_, &again_, &stranger_}) worker->MustOpen(open);
  const auto step = [](uint32_t position, const std::string& checkpoint) {
    StepBuilder builder(position + 1, kVocabulary);
    v1::StepRow& row = builder.AddRow("a", position + 1, position, F32Peak(kVocabulary, 7));
    if (!checkpoint.empty()) row.set_checkpoint(checkpoint);
    return builder.Build();
  };
  const std::string checkpoint = owner_.RunOne(step(0, "")).draw().checkpoint();
  ASSERT_FALSE(checkpoint.empty());
  ExpectError(stranger_.RunOne(step(1, checkpoint)), Reason::kCheckpointRefused, "step.rows[0].checkpoint");
  EXPECT_TRUE(again_.RunOne(step(1, checkpoint)).has_draw());
}

TEST_F(SessionTenant, MaskIsItsStreamsAlone) {
  v1::StreamRequest upload;
  upload.mutable_upload_mask()->set_mask_id(7);
  upload.mutable_upload_mask()->set_vocabulary_size(kVocabulary);
  upload.mutable_upload_mask()->mutable_mask()->set_rows(1);
  upload.mutable_upload_mask()->mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  upload.add_payloads(std::string(kVocabulary / 8, '\xff'));
  owner_.Send(upload);
  ASSERT_TRUE(owner_.Await([](const auto& message) { return message.has_mask_uploaded(); }));
  for (StreamWorker* worker : {&owner_, &stranger_}) worker->MustOpen(MakeOpen("a", 1, kVocabulary));
  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 0, F32Peak(kVocabulary, 7)).mutable_mask()->set_uploaded_mask_id(7);
  ExpectError(stranger_.RunOne(step.Build()), Reason::kUnknownMask, "step.rows[0].mask.uploaded_mask_id");
  EXPECT_EQ(owner_.RunOne(step.Build()).draw().token(), 7u);
}

// The id of a region means nothing without the secret of its connection, and that cannot be guessed.
TEST_F(SessionTenant, RegionNeedsConnectionsSecret) {
  const auto connect = [&] { return std::get<std::shared_ptr<MemoryConnection>>(engine_->regions().Connect([] {})); };
  const auto owners = connect(), strangers = connect();
  auto made = owners->Register(kVocabulary * sizeof(float));
  const uint64_t region = std::get<MemoryConnection::Registered>(made).id;
  const auto attach = [](const std::string& token) {
    v1::StreamRequest message;
    message.mutable_attach_memory()->set_token(token);
    return message;
  };
  StepBuilder builder(1, kVocabulary);
  builder.AddRow("a", 1, 0, "");
  v1::StreamRequest step = builder.Build();
  step.clear_payloads();
  v1::TensorSource::MemoryRegion* source = step.mutable_step()->mutable_logits()->mutable_source()->mutable_region();
  source->set_region_id(region);
  source->set_length(kVocabulary * sizeof(float));

  for (StreamWorker* worker : {&owner_, &stranger_}) worker->MustOpen(MakeOpen("a", 1, kVocabulary));
  stranger_.Send(attach(strangers->token()));
  stranger_.Send(step);
  EXPECT_EQ(stranger_.StepError(1).reason(), v1::UNKNOWN_REGION);
  std::string guess = owners->token();
  guess[15] = static_cast<char>(guess[15] ^ 1);
  for (const std::string& token : {guess, owners->token().substr(0, 15), std::string()}) {
    stranger_.Send(attach(token));
    ExpectError(stranger_.Rejected().error(), Reason::kUnknownRegion, "attach_memory.token");
  }
  owner_.Send(attach(owners->token()));
  EXPECT_TRUE(owner_.RunOne(step).has_draw());
}

// Shards of a row with the same worker session and batch id.
TEST_F(SessionTenant, ShardsOfTwoTenantsStayApart) {
  const auto shard_step = [](uint32_t index) {
    StepBuilder builder(1, kVocabulary / 2);
    builder.AddRow("a", 1, 0, F32Peak(kVocabulary / 2, 7));
    v1::StreamRequest message = builder.Build();
    v1::VocabularyShard* shard = message.mutable_step()->mutable_logits()->mutable_shard();
    shard->set_index(index);
    shard->set_count(2);
    shard->set_total_vocabulary_size(kVocabulary);
    shard->set_first_token(index * kVocabulary / 2);
    return message;
  };
  owner_.MustOpen(MakeOpen("a", 1, kVocabulary));
  owner_.Send(shard_step(0));
  stranger_.Send(shard_step(1));
  engine_.clock().Advance(absl::Minutes(1));
  engine_->Sweep();
  EXPECT_EQ(owner_.Results(1, 1).at(0).error().reason(), v1::DEADLINE_PASSED);
  EXPECT_EQ(stranger_.Results(1, 1).at(0).error().reason(), v1::DEADLINE_PASSED);
}

}  // namespace
}  // namespace sortition::service::session_tenant_test
