// Sessions whose steps lie in a region of shared memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "service/memory/region_table.h"
#include "tests/support/client_region.h"
#include "tests/support/expect_error.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {

using testing::Attach;
using testing::ClientRegion;
using testing::SetRegion;

inline std::shared_ptr<MemoryConnection> Connect(service::Engine* engine) {
  return std::get<std::shared_ptr<MemoryConnection>>(engine->regions().Connect([] {}));
}

inline constexpr uint32_t kMemoryVocabulary = 64;
inline constexpr uint64_t kMemoryRowBytes = kMemoryVocabulary * sizeof(float);
inline constexpr uint64_t kRegionBytes = 4096;

// A stream with two sequences, "a" and "b", and a region.
class SessionMemory : public ::testing::Test {
 protected:
  SessionMemory() {
    worker_.Send(Attach(*connection_));
    worker_.MustOpen(testing::MakeOpen("a", 1, kMemoryVocabulary));
    worker_.MustOpen(testing::MakeOpen("b", 1, kMemoryVocabulary));
  }

  // A step of rows "a" and "b" with logits in the region.
  v1::StreamRequest Step(uint64_t region, uint64_t offset, uint64_t length = 2 * kMemoryRowBytes) {
    testing::StepBuilder builder(++batch_, kMemoryVocabulary);
    builder.AddRow("a", batch_, 0, "");
    builder.AddRow("b", batch_, 0, "");
    v1::StreamRequest request = builder.Build();
    request.clear_payloads();
    SetRegion(region, offset, length, request.mutable_step()->mutable_logits()->mutable_source());
    return request;
  }
  void ExpectRefused(const v1::StreamRequest& request, Reason reason, const std::string& field) {
    worker_.Send(request);
    ExpectError(worker_.StepError(request.step().batch_id()), reason, field);
  }

  testing::TestEngine engine_ = testing::TestEngine::OnCpu();
  std::shared_ptr<MemoryConnection> connection_ = Connect(engine_.get());
  ClientRegion region_{connection_.get(), kRegionBytes};
  testing::StreamWorker worker_{engine_.get()};
  uint64_t batch_ = 0;
};

}  // namespace sortition::service
