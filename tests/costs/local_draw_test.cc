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

}  // namespace
}  // namespace sortition::costs::local_draw_test
