// Texts with drafts, phases and ends over the CPU and an emulated CUDA device equal texts over the CPU alone.
#include <gtest/gtest.h>

#include "tests/cuda/device_batch.h"
#include "tests/support/device_texts.h"
#include "tests/support/scale.h"

namespace sortition::testing::texts_test {
namespace {

TEST(CudaTexts, EqualThoseOfTheCpu) {
  const FakeCudaDriver driver;
  CompareTexts(StartOn(driver, {.max_batch_rows = 2}), std::max<uint64_t>(Scaled(200), 50));
}

}  // namespace
}  // namespace sortition::testing::texts_test
