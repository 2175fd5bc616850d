// This tree's client with a release's server: it sends no field that the release lacks, unless a caller sets it.
#include "tests/client/released_contract.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::released_contract_test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the path of a field that the message's contract lacks; empty if it has all.
std::string UnknownFieldIn(const Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (!unknown.empty()) return "#" + std::to_string(unknown.field(0).number());
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string found =
          UnknownFieldIn(field->is_repeated() ? message.GetReflection()->GetRepeatedMessage(message, field, i)
                                              : message.GetReflection()->GetMessage(message, field));
      if (!found.empty()) return std::string(field->name()) + "." + found;
    }
  }
  return "";
}

// A batch of a draw, a draft and a score.
std::shared_ptr<client::PendingBatch> EveryTask(StateHarness* harness, const client::Drafts& drafts,
                                                std::span<const uint32_t> scored) {
  auto batch = std::make_shared<client::PendingBatch>();
  batch->vocabulary_size = StateHarness::kVocabulary;
  batch->row_bytes = sizeof(float) * StateHarness::kVocabulary;
  batch->deadline = harness->now + absl::Seconds(60);
  batch->traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  batch->priority = 1;
  batch->done = [](const std::vector<client::RowResult>&) {};
  for (const char* const id : {"draw", "verify", "score"}) {
    client::PendingRow& row = batch->rows.emplace_back();
    row.record = harness->OpenOn(harness->last_stream(), id, true);
    row.row.logits = harness->logits;
  }
  batch->rows[0].row.draw_salt = 3;
  batch->rows[1].row.drafts = &drafts;
  batch->rows[2].row.scored = scored;
  return batch;
}

// Returns a message of each kind that a client sends by itself.
std::vector<v1::StreamRequest> MessagesOfAClient() {
  StateHarness harness(HarnessOptions());
  std::vector<v1::StreamRequest> messages{harness.stream(0).sent.front().message};
  harness.Welcome(harness.stream(0));
  client::SequenceOptions options;
  options.request_id = "sequence";
  options.vocabulary_size = StateHarness::kVocabulary;
  options.live_vocabulary_size = StateHarness::kVocabulary - 1;
  options.seed = 5;
  options.choice_index = 1;
  options.model = "model";
  options.prompt = {1, 2};
  options.parameters.set_repetition_penalty(1.5);
  const auto opened = harness.Open(options);
  messages.push_back(harness.stream(0).sent.front().message);
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  const std::vector<uint32_t> tokens = {3, 4};
  client::Drafts drafts;
  drafts.tokens = tokens;
  harness.state.Submit(EveryTask(&harness, drafts, tokens), harness.now);
  messages.push_back(harness.stream(0).sent.front().message);
  harness.Take(harness.stream(0), v1::StreamRequest::kStep);
  harness.state.Close(opened.record.get());
  messages.push_back(harness.stream(0).sent.front().message);
  return messages;
}

std::vector<std::string> Releases() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(RELEASED_CONTRACTS)) files.push_back(entry.path());
  return files;
}

TEST(ReleasedContract, ServersKnowWhatClientsSendByThemselves) {
  const std::vector<v1::StreamRequest> messages = MessagesOfAClient();
  const v1::StreamRequest::KindCase kinds[] = {v1::StreamRequest::kHello, v1::StreamRequest::kOpen,
                                               v1::StreamRequest::kStep, v1::StreamRequest::kClose};
  ASSERT_EQ(messages.size(), std::size(kinds));
  ASSERT_FALSE(Releases().empty());
  for (const std::string& release : Releases()) {
    ReleasedContract contract(release);
    for (size_t i = 0; i < messages.size(); ++i) {
      EXPECT_EQ(messages[i].kind_case(), kinds[i]);
      const std::unique_ptr<Message> read = contract.New("StreamRequest");
      ASSERT_TRUE(read->ParseFromString(messages[i].SerializeAsString()));
      EXPECT_EQ(UnknownFieldIn(*read), "") << release << ": " << messages[i].ShortDebugString();
    }
  }
}

TEST(ReleasedContract, FieldOfALaterReleaseIsFound) {
  ASSERT_FALSE(Releases().empty());
  ReleasedContract contract(Releases().front());
  v1::StreamRequest later;
  v1::StepRow* const row = later.mutable_step()->add_rows();
  row->GetReflection()->MutableUnknownFields(row)->AddVarint(999, 1);
  const std::unique_ptr<Message> read = contract.New("StreamRequest");
  ASSERT_TRUE(read->ParseFromString(later.SerializeAsString()));
  EXPECT_EQ(UnknownFieldIn(*read), "step.rows.#999");
}

}  // namespace
}  // namespace sortition::testing::released_contract_test
