// The parts of a test of sessions, by their short names: an engine, a worker's stream to it, its messages, the plain
// sequence that says what is due, and expectations on typed errors.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/messages.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {

using testing::AddBias;
using testing::F32Bytes;
using testing::F32Peak;
using testing::MakeOpen;
using testing::ParametersOf;
using testing::PlainSequence;
using testing::RandomLogits;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

}  // namespace sortition::service
