// A draw in this process takes no memory from the heap.
#include <gtest/gtest.h>

#include <thread>
#include <variant>
#include <vector>

#include "sortition/local_sequence.h"
#include "tests/costs/heap.h"

namespace sortition::costs::local_draw_test {
namespace {

TEST(LocalDrawTest, PlainDrawsTakeNoMemory) {
  client::SequenceOptions options;
  options.request_id = "r";
  options.model = "m";
  options.vocabulary_size = 64;
  options.seed = 7;
  options.parameters.set_temperature(0.9f);
  auto sequence = client::LocalSequence::Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const std::vector<float> logits(64, 1.0f);
  client::Row row;
  row.logits = logits.data();
  const auto draw = [&] { return std::holds_alternative<v1::DrawResult>((*sequence)->Step(v1::DTYPE_F32, row)); };
  ASSERT_TRUE(draw());
  bool drawn = true;
  int64_t before = 0;
  std::thread counted([&] {
    drawn &= draw();  // the first of this thread
    CountHeapOfThisThread();
    ResetHeapPeak();
    before = HeapPeak();
    for (int i = 0; i < 100; ++i) drawn &= draw();
  });
  counted.join();
  EXPECT_TRUE(drawn);
  EXPECT_EQ(HeapPeak(), before);
}

TEST(LocalDrawTest, IdleSequencesHoldNoLongLists) {
  constexpr uint32_t kVocabulary = 65536;
  client::SequenceOptions options;
  options.request_id = "r";
  options.model = "m";
  options.vocabulary_size = kVocabulary;
  options.seed = 7;
  options.parameters.mutable_kept_set()->set_tokens(true);
  auto first = client::LocalSequence::Open(options);
  auto second = client::LocalSequence::Open(options);
  ASSERT_TRUE(first.ok() && second.ok());
  const std::vector<float> logits(kVocabulary, 1.0f);
  client::Row row;
  row.logits = logits.data();
  bool drawn = true;
  int64_t held = 0;
  std::thread counted([&] {
    const auto draw = [&](client::LocalSequence& sequence) {
      const client::RowResult result = sequence.Step(v1::DTYPE_F32, row);
      const auto* const whole = std::get_if<v1::DrawResult>(&result);
      drawn &= whole != nullptr && whole->kept_tokens_size() == kVocabulary;
    };
    draw(**first);  // the first of this thread
    CountHeapOfThisThread();
    const int64_t before = HeapHeld();
    draw(**second);
    held = HeapHeld() - before;
  });
  counted.join();
  EXPECT_TRUE(drawn);
  EXPECT_LT(held, int64_t{kVocabulary});
}

}  // namespace
}  // namespace sortition::costs::local_draw_test
