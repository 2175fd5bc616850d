// Memory that a server has freed goes back to the kernel.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "tests/server/server_process.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::freed_memory_test {
namespace {

constexpr uint64_t kMegabyte = 1 << 20;

uint64_t ResidentBytes(const ServerProcess& process) {
  uint64_t size = 0, resident = 0;  // in pages
  std::ifstream(absl::StrCat("/proc/", process.pid(), "/statm")) >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(FreedMemoryTest, GoesBackAfterALargeSequence) {
  constexpr uint32_t kTokens = 1'000'000;
  constexpr uint64_t kLeastOpened = 80 * kMegabyte;  // of these tokens' n-grams
  constexpr uint64_t kMostKept = 64 * kMegabyte;     // glibc keeps the end of a thread's arena
  ServerProcess process({{"--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1"}, {}, 0});
  TestStream stream(grpc::CreateChannel(process.Serving("listen"), grpc::InsecureChannelCredentials()));
  stream.Greet();
  const uint64_t before = ResidentBytes(process);
  v1::StreamRequest request;
  v1::OpenSequence& open = *request.mutable_open();
  open.set_request_id("r");
  open.set_epoch(1);
  open.set_law_version(law::kLawVersion);
  open.set_vocabulary_size(kTokens);
  open.mutable_parameters()->set_no_repeat_ngram_size(3);
  v1::History& history = *open.mutable_history();
  history.set_prompt_length(kTokens);
  // One message may not hold all.
  for (const uint32_t end : {kTokens / 2, kTokens}) {
    const uint32_t begin = end - kTokens / 2;
    history.clear_tokens();
    for (uint32_t token = begin; token < end; ++token) history.add_tokens(token);
    history.set_offset(begin);
    history.set_continues(end < kTokens);
    ASSERT_TRUE(stream.Send(request));
  }
  ASSERT_FALSE(stream.ReceiveOne().opened().has_error());
  EXPECT_GT(ResidentBytes(process), before + kLeastOpened);
  request.mutable_close()->set_request_id("r");
  request.mutable_close()->set_epoch(1);
  ASSERT_TRUE(stream.Send(request));
  ASSERT_FALSE(stream.ReceiveOne().closed().has_error());
  if (UnderSanitizer()) return;
  EXPECT_TRUE(Eventually([&] { return ResidentBytes(process) < before + kMostKept; }));
}

}  // namespace
}  // namespace sortition::server::freed_memory_test
