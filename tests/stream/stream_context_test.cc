// The memory of steps that are over serves later ones.
#include "service/stream/stream_context.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "service/wire/frame.h"
#include "tests/support/messages.h"
#include "tests/support/recording_sink.h"

namespace sortition::service::stream_context_test {
namespace {

constexpr uint64_t kSmall = 1000;  // bytes of a step
constexpr uint64_t kParts = 4;
constexpr size_t kMostMemory = 64 << 10;  // of a step that is kept

std::unique_ptr<v1::Step> UsedStep() {
  auto step = std::make_unique<v1::Step>();
  step->set_batch_id(7);
  step->add_rows()->set_request_id("a");
  return step;
}

class StreamContextTest : public ::testing::Test {
 protected:
  // Returns true if the next step, which is empty, has memory for rows from an earlier one.
  bool IsReused() {
    const std::unique_ptr<v1::Step> step = stream_.NewStep();
    EXPECT_EQ(step->ByteSizeLong(), 0u);
    return step->rows().Capacity() > 0;
  }

  StreamContext stream_{Limits(), "tenant", std::make_shared<testing::RecordingSink>()};
};

TEST_F(StreamContextTest, AStepIsReusedOnce) {
  EXPECT_FALSE(IsReused());
  stream_.Reuse(UsedStep(), kSmall, kParts);
  EXPECT_TRUE(IsReused());
  EXPECT_FALSE(IsReused());
}

TEST_F(StreamContextTest, LargeStepsAreFreed) {
  stream_.Reuse(UsedStep(), kMostMemory / 8 + 1, 0);
  EXPECT_FALSE(IsReused());
  stream_.Reuse(UsedStep(), 0, kMostMemory / 256 + 1);
  EXPECT_FALSE(IsReused());
  stream_.Reuse(UsedStep(), kMostMemory / 16, kMostMemory / 512);
  EXPECT_TRUE(IsReused());
}

// Two bytes on the wire may be a row, which takes two hundred.
TEST_F(StreamContextTest, AKeptStepHasLittleMemory) {
  const std::function<void(int, v1::Step*)> kinds[] = {
      [](int, v1::Step* step) { step->add_rows(); },
      [](int i, v1::Step* step) {
        (i == 0 ? step->add_rows() : step->mutable_rows(0))
            ->mutable_verify_draft()
            ->add_masks()
            ->mutable_allowed_tokens();
      },
      [](int i, v1::Step* step) { (i == 0 ? step->add_rows() : step->mutable_rows(0))->add_append_tokens(1); },
      [](int i, v1::Step* step) {
        (i == 0 ? step->add_rows() : step->mutable_rows(0))->mutable_mask()->add_banned_tokens(1);
      },
      [](int, v1::Step* step) { step->add_rows()->mutable_mask()->mutable_allowed_tokens()->add_tokens(1); },
  };
  for (size_t kind = 0; kind < std::size(kinds); ++kind) {
    int kept = 0;
    for (int size = 1; size <= 20'000; size *= 2) {
      v1::StreamRequest message;
      for (int i = 0; i < size; ++i) kinds[kind](i, message.mutable_step());
      const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
      Limits limits;
      limits.max_step_positions = kMostStepPositions;
      Frame frame = std::get<Frame>(DecodeFrame(delivery.segments, delivery.bytes, MakeStep, limits));
      const uint64_t bytes = frame.message_bytes;
      stream_.Reuse(std::unique_ptr<v1::Step>(frame.message.release_step()), bytes, frame.scan.parts);
      const std::unique_ptr<v1::Step> next = stream_.NewStep();
      EXPECT_LE(next->SpaceUsedLong(), kMostMemory) << kind << " of " << size;
      if (next->rows().Capacity() > 0) ++kept;
    }
    EXPECT_GE(kept, 5) << kind;
  }
}

TEST_F(StreamContextTest, TwoAreKept) {
  for (int i = 0; i < 3; ++i) stream_.Reuse(UsedStep(), kSmall, kParts);
  EXPECT_TRUE(IsReused());
  EXPECT_TRUE(IsReused());
  EXPECT_FALSE(IsReused());
}

TEST_F(StreamContextTest, AClosedStreamKeepsNone) {
  stream_.Reuse(UsedStep(), kSmall, kParts);
  stream_.Close();
  stream_.Reuse(UsedStep(), kSmall, kParts);
  EXPECT_FALSE(IsReused());
}

}  // namespace
}  // namespace sortition::service::stream_context_test
