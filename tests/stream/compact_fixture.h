// A stream of one tenant that steps compact rows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/compact_step.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {

using testing::CompactChoice;
using testing::MakeOpen;
using testing::PlainRowParameters;
using testing::PlainSequence;
using testing::RandomLogits;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;
using testing::WithCompactRows;

class CompactFixture : public ::testing::Test {
 protected:
  // Sends a step of one row and returns its result, empty if there is not one.
  v1::RowResult RunOne(v1::StreamRequest message) {
    message.mutable_step()->set_batch_id(++batch_);
    const std::vector<v1::RowResult> results = compact_.Run(message);
    return results.size() == 1 ? results[0] : v1::RowResult();
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker compact_{engine_.get(), {.tenant = "compact"}};
  uint64_t batch_ = 0;
};

}  // namespace sortition::service
