// The client against a service that opens sequences and then never answers: deadlines, rewrites and shutdown with steps
// in flight.
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "kernels/law/version.h"
#include "sortition/client.h"
#include "sortition/local_sequence.h"
#include "tests/client/fake_transport.h"
#include "tests/client/serial_tasks.h"

namespace sortition::testing::silent_service_test {
namespace {

// Welcomes streams, opens sequences, and never answers a step. The first `failures` streams end at once.
class SilentConnector final : public client::Connector {
 public:
  explicit SilentConnector(int failures = 0) : failures_(failures) {}
  std::shared_ptr<client::Transport> Start(size_t, uint64_t stream, client::StreamEvents* events) override {
    if (failures_ > 0) {
      --failures_;
      tasks_.Post([stream, events] { events->OnEnded(stream, absl::UnavailableError("No such file or directory")); });
    }
    return std::make_shared<SilentTransport>(stream, events, &tasks_);
  }

 private:
  class SilentTransport final : public client::Transport {
   public:
    SilentTransport(uint64_t stream, client::StreamEvents* events, SerialTasks* tasks)
        : stream_(stream), events_(*events), tasks_(*tasks) {}

    void Send(client::OutgoingMessage message) override {
      if (!message.segments.back().borrowed.empty()) return kept_.push_back(std::move(message));
      v1::StreamRequest request;
      ASSERT_TRUE(request.ParseFromString(message.segments.back().owned));
      v1::StreamResponse response;
      if (request.has_hello()) {
        response.mutable_welcome()->add_law_versions(law::kLawVersion);
      } else if (request.has_open()) {
        response.mutable_opened()->set_request_id(request.open().request_id());
        response.mutable_opened()->set_epoch(request.open().epoch());
        response.mutable_opened()->mutable_state()->set_seed(1);
      } else {
        return;
      }
      tasks_.Post([stream = stream_, &events = events_, response] { events.OnResponse(stream, response); });
    }
    void Flush(bool) override {}
    void Cancel() override {
      if (std::exchange(cancelled_, true)) return;
      kept_.clear();
      tasks_.Post([stream = stream_, &events = events_] { events.OnEnded(stream, absl::CancelledError("cancelled")); });
    }

   private:
    const uint64_t stream_;
    client::StreamEvents& events_;
    SerialTasks& tasks_;
    bool cancelled_ = false;
    std::vector<client::OutgoingMessage> kept_;
  };

  int failures_;
  SerialTasks tasks_;
};

absl::Status ConnectAfter(int failures) {
  client::ClientOptions options;
  options.targets = {"nobody"};
  return client::Client::ConnectWith(options, std::make_unique<SilentConnector>(failures)).status();
}

// gRPC 1.51 sometimes reports a connection attempt in progress as failed.
TEST(ConnectTest, FailedTargetIsTriedAgainOnce) {
  EXPECT_TRUE(ConnectAfter(1).ok()) << ConnectAfter(1);
  EXPECT_TRUE(absl::IsUnavailable(ConnectAfter(2))) << ConnectAfter(2);
}

class SilentServiceTest : public ::testing::Test {
 protected:
  SilentServiceTest() {
    client::ClientOptions options;
    options.targets = {"nobody"};
    auto connected = client::Client::ConnectWith(options, std::make_unique<SilentConnector>());
    EXPECT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    client::SequenceOptions sequence_options;
    sequence_options.request_id = std::string("r");
    sequence_options.vocabulary_size = 4;
    sequence_options.prompt = {1, 2};
    auto opened = client->Open(sequence_options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    sequence = *std::move(opened);
  }

  client::Batch OneRow() const { return {v1::DTYPE_F32, 4, {{sequence.get(), row}}}; }

  const float row[4] = {};
  std::unique_ptr<client::Client> client;
  std::unique_ptr<client::Sequence> sequence;
};

// A rank that continues a forked text in a new process passes its turns.
TEST(TurnsTest, OnlyRanksTakeGivenTurns) {
  client::ClientOptions options;
  options.targets = {"nobody"};
  options.worker_session = "ranks";
  options.shard = client::VocabularyShard{1, 2, 2, 2, 4};
  client::SequenceOptions sequence;
  sequence.vocabulary_size = 4;
  sequence.prompt = {1, 2};
  client::SequenceOptions fork;
  fork.vocabulary_size = 4;
  fork.turns = 3;
  for (const bool ranks : {true, false}) {
    if (!ranks) options.shard.reset();
    const auto client = *client::Client::ConnectWith(options, std::make_unique<SilentConnector>());
    sequence.request_id = "parent";
    sequence.turns = 0;
    const auto parent = client->Open(sequence);
    ASSERT_TRUE(parent.ok()) << parent.status();
    sequence.request_id = fork.request_id = "child";
    sequence.turns = 5;
    const auto child = client->Fork(**parent, fork);
    if (ranks) {
      ASSERT_TRUE(child.ok()) << child.status();
      EXPECT_EQ((*child)->turns(), 3);
    } else {
      EXPECT_NE(child.status().message().find("turns: "), std::string::npos) << child.status();
      EXPECT_NE(client->Open(sequence).status().message().find("turns: "), std::string::npos);
      EXPECT_NE(client::LocalSequence::Open(sequence).status().message().find("turns: "), std::string::npos);
    }
  }
}

TEST_F(SilentServiceTest, DeadlineEndsWaitAndFreesMemory) {
  client::StepOptions options;
  options.timeout = absl::Milliseconds(20);
  const auto results = client->Step(OneRow(), options);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(std::get<client::RowError>((*results)[0]).reason, v1::DEADLINE_PASSED);
  EXPECT_EQ(sequence->position(), 2);
}

TEST_F(SilentServiceTest, RewriteDuringStepIsRefused) {
  absl::Notification over;
  ASSERT_TRUE(client->StepAsync(OneRow(), {}, [&](std::vector<client::RowResult>) { over.Notify(); }).ok());
  const uint32_t token = 1;
  EXPECT_EQ(sequence->Append({&token, 1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sequence->ReplaceLast(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sequence->Truncate(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sequence->position(), 2);
  client.reset();
  EXPECT_TRUE(over.HasBeenNotified());
  EXPECT_TRUE(sequence->Append({&token, 1}).ok());
}

TEST_F(SilentServiceTest, SecondStepInFlightFailsWithoutBlocking) {
  absl::Notification first_over;
  std::vector<client::RowResult> first;
  ASSERT_TRUE(client
                  ->StepAsync(OneRow(), {},
                              [&](std::vector<client::RowResult> results) {
                                first = std::move(results);
                                first_over.Notify();
                              })
                  .ok());
  const auto second = client->Step(OneRow());
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(std::get<client::RowError>((*second)[0]).reason, v1::STEP_IN_FLIGHT);
  client.reset();
  first_over.WaitForNotification();
  EXPECT_EQ(std::get<client::RowError>(first[0]).reason, v1::STEP_CANCELLED);
}

TEST_F(SilentServiceTest, CallbackMayStepAgain) {
  client::StepOptions options;
  options.timeout = absl::Milliseconds(5);
  absl::Notification over;
  ASSERT_TRUE(
      client
          ->StepAsync(
              OneRow(), options,
              [&](std::vector<client::RowResult>) {
                EXPECT_TRUE(
                    client->StepAsync(OneRow(), options, [&](std::vector<client::RowResult>) { over.Notify(); }).ok());
              })
          .ok());
  over.WaitForNotification();
}

}  // namespace
}  // namespace sortition::testing::silent_service_test
