// Slices of segmented payloads.
#include "service/wire/payload_view.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/messages.h"
#include "tests/support/scale.h"

namespace sortition::service::payload_view_test {
namespace {

std::string Joined(const absl::InlinedVector<devices::ByteSegment, 2>& slices) {
  std::string bytes;
  for (const devices::ByteSegment& slice : slices) {
    EXPECT_GT(slice.size, 0u);
    bytes.append(reinterpret_cast<const char*>(slice.data), slice.size);
  }
  return bytes;
}

Payload PayloadOf(const testing::Delivery& delivery) {
  Payload payload;
  for (const devices::ByteSegment& segment : delivery.segments) {
    if (segment.size > 0) payload.segments.push_back(segment);
  }
  payload.size = delivery.bytes->size();
  return payload;
}

TEST(PayloadView, SlicesAndCopiesOfRandomPayloads) {
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < testing::Scaled(5000); ++i) {
    std::string bytes(1 + random() % 200, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    const testing::Delivery delivery = testing::DeliverInPieces(bytes, &random);
    const Payload payload = PayloadOf(delivery);
    const PayloadView view(payload);
    const uint64_t offset = random() % bytes.size();
    const uint64_t size = random() % (bytes.size() - offset + 1);
    ASSERT_EQ(Joined(view.Slice(offset, size)), bytes.substr(offset, size));
    std::string copy(size, 0);
    view.Copy(offset, size, copy.data());
    ASSERT_EQ(copy, bytes.substr(offset, size));
  }
}

TEST(PayloadView, SlicesPointIntoThePayload) {
  const size_t cuts[] = {10};
  const testing::Delivery delivery = testing::Deliver(std::string(30, 'x'), cuts);
  const Payload payload = PayloadOf(delivery);
  const auto slices = PayloadView(payload).Slice(5, 20);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].data, delivery.segments[0].data + 5);
  EXPECT_EQ(slices[1].data, delivery.segments[1].data);
  EXPECT_EQ(slices[1].size, 15u);
}

TEST(PayloadViewDeathTest, SlicesLieWithinThePayload) {
  const testing::Delivery delivery = testing::Deliver("abc");
  const Payload payload = PayloadOf(delivery);
  const PayloadView view(payload);
  EXPECT_DEATH(view.Slice(0, 4), "broken invariant");
  EXPECT_DEATH(view.Slice(4, 0), "broken invariant");
  EXPECT_DEATH(view.Slice(1, ~uint64_t{0}), "broken invariant");
}

}  // namespace
}  // namespace sortition::service::payload_view_test
