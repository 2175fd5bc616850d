// Threads that share a client: those that wait in Step read answers for each other, and for those that do not wait.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "sortition/client.h"
#include "tests/client/rows.h"
#include "tests/server/test_server.h"

namespace sortition::server::shared_client_test {
namespace {

constexpr uint32_t kVocabulary = 100;
constexpr int kSteps = 200;

std::unique_ptr<client::Sequence> Open(client::Client* client, const std::string& name) {
  client::SequenceOptions options;
  options.request_id = name;
  options.vocabulary_size = kVocabulary;
  auto opened = client->Open(options);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

void ExpectToken(const std::vector<client::RowResult>& results) {
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(results[0]));
}

TEST(SharedClientTest, CallersThatWaitAndOthersGetTheirAnswers) {
  TestServer server;
  client::ClientOptions options;
  options.targets = {server.target()};
  options.rows.form = client::RowFormOptions::Form::kFull;
  auto client = client::Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<std::byte> row = testing::MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto sequence = Open(client->get(), absl::StrCat("thread ", i));
      const client::Batch batch{v1::DTYPE_F32, kVocabulary, {{sequence.get(), row.data()}}};
      for (int step = 0; step < kSteps; ++step) {
        if (i % 2 == 0) {
          auto results = (*client)->Step(batch);
          ASSERT_TRUE(results.ok()) << results.status();
          ExpectToken(*results);
        } else {
          absl::Notification over;
          const auto done = [&](const std::vector<client::RowResult>& results) {
            ExpectToken(results);
            over.Notify();
          };
          ASSERT_TRUE((*client)->StepAsync(batch, {}, done).ok());
          over.WaitForNotification();
        }
      }
      EXPECT_EQ(sequence->position(), kSteps);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sortition::server::shared_client_test
