// A stream of one tenant that steps compact rows.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/compact_step.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/session.h"

namespace sortition::service {

using testing::CompactChoice;
using testing::PlainRowParameters;
using testing::WithCompactRows;

class CompactFixture : public ::testing::Test {
 protected:
  // Sends a step of one row and returns its result, empty if there is not one.
  v1::RowResult RunOne(v1::StreamRequest message) {
    message.mutable_step()->set_batch_id(++batch_);
    return compact_.RunOne(message);
  }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker compact_{engine_.get(), {.tenant = "compact"}};
  uint64_t batch_ = 0;
};

}  // namespace sortition::service
