// Rings: every message of any size arrives once and whole, and no write of the other end harms this one.
#include "service/memory/ring.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "service/memory/sealed_memory.h"
#include "tests/support/scale.h"

namespace sortition::service::ring_test {
namespace {

// Memory with two mappings, as two processes have it.
class Memory {
 public:
  Memory() : memory_(*SealedMemory::Make(kRingPairBytes, SealedMemory::Access::kReadWrite)) {
    const Descriptor descriptor = memory_->TakeDescriptor();
    others_ =
        static_cast<std::byte*>(mmap(nullptr, kRingPairBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0));
  }
  ~Memory() { munmap(others_, kRingPairBytes); }
  std::byte* data() { return memory_->data(); }
  std::byte* others() { return others_; }

 private:
  std::unique_ptr<SealedMemory> memory_;
  std::byte* others_;
};

class RingTest : public ::testing::Test {
 protected:
  RingStatus Put(const std::string& message) {
    const std::span<const std::byte> part = std::as_bytes(std::span(message.data(), message.size()));
    return writer_.Put({&part, 1});
  }

  Memory memory_;
  RingPair pair_{memory_.data()};
  RingWords& words_ = *pair_.request_words;
  RingWriter writer_{pair_.request_words, pair_.request_bytes};
  RingReader reader_{pair_.request_words, pair_.request_bytes};
  std::string message_;
};

TEST_F(RingTest, MessagesOfAllSizesArriveOnceInOrder) {
  std::mt19937_64 random(1);
  std::vector<std::string> sent;
  size_t taken = 0;
  for (int i = 0; i < 400; ++i) {
    const uint64_t most = i % 50 == 0 ? kMostRingMessageBytes : 20000;
    std::string message(1 + random() % most, static_cast<char>(i));
    message.back() = 'x';
    while (Put(message) == RingStatus::kNotNow) {
      ASSERT_EQ(reader_.Take(&message_), RingStatus::kDone);
      ASSERT_EQ(message_, sent.at(taken++));
    }
    sent.push_back(std::move(message));
  }
  while (taken < sent.size()) {
    EXPECT_TRUE(reader_.HasMore());
    ASSERT_EQ(reader_.Take(&message_), RingStatus::kDone);
    ASSERT_EQ(message_, sent[taken++]);
  }
  EXPECT_FALSE(reader_.HasMore());
  EXPECT_EQ(reader_.Take(&message_), RingStatus::kNotNow);
}

TEST_F(RingTest, PartsFormOneMessage) {
  const std::string a = "abc";
  const std::string b = "defgh";
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(a.data(), a.size())),
                                              std::as_bytes(std::span(b.data(), b.size()))};
  EXPECT_EQ(writer_.Put(parts), RingStatus::kDone);
  EXPECT_EQ(reader_.Take(&message_), RingStatus::kDone);
  EXPECT_EQ(message_, "abcdefgh");
}

TEST_F(RingTest, WritersWordsAreValidated) {
  for (const uint64_t written : {uint64_t{1}, uint64_t{7}, uint64_t{12}, kRingBytes + 8, ~uint64_t{0}, ~uint64_t{7}}) {
    words_.written = written;
    EXPECT_EQ(reader_.Take(&message_), RingStatus::kBroken) << written;
  }
  for (const uint32_t size :
       {uint32_t{0}, uint32_t{9}, uint32_t{16}, uint32_t(kMostRingMessageBytes) + 1, ~uint32_t{0}}) {
    words_.written = 16;  // room for 8 bytes
    std::memcpy(pair_.request_bytes, &size, sizeof(size));
    EXPECT_EQ(reader_.Take(&message_), RingStatus::kBroken) << size;
  }
}

TEST_F(RingTest, ReadersWordsAreValidated) {
  EXPECT_EQ(Put("abc"), RingStatus::kDone);
  for (const uint64_t read : {uint64_t{17}, ~uint64_t{0}, 16 + kRingBytes}) {
    words_.read = read;
    EXPECT_EQ(Put("abc"), RingStatus::kBroken) << read;
  }
}

// The other end writes anything at any time: each call returns, with results from within the ring.
TEST_F(RingTest, ChangingWordsAndBytesAreSurvived) {
  std::atomic<bool> over = false;
  std::thread other([&] {
    const RingPair pair(memory_.others());
    RingWords& words = *pair.request_words;
    std::mt19937_64 random(5);
    while (!over.load(std::memory_order_relaxed)) {
      words.written.store(random() % 3 == 0 ? random() : random() % (2 * kRingBytes) / 8 * 8);
      words.read.store(random() % 2 == 0 ? random() : 0);
      words.asleep.store(static_cast<uint32_t>(random() % 3));
      const auto word = static_cast<uint32_t>(random() % 100);
      std::memcpy(pair.request_bytes + random() % 1024 * 4, &word, sizeof(word));
    }
  });
  const uint64_t rounds = testing::Scaled(20000);
  for (uint64_t i = 0; i < rounds; ++i) {
    RingReader reader(pair_.request_words, pair_.request_bytes);
    message_.clear();
    reader.Take(&message_);
    EXPECT_LE(message_.size(), kMostRingMessageBytes);
    const std::byte byte{1};
    const std::span<const std::byte> part(&byte, 1);
    RingWriter writer(pair_.request_words, pair_.request_bytes);
    writer.Put({&part, 1});
  }
  over = true;
  other.join();
}

TEST_F(RingTest, SleeperIsWoken) {
  const int messages = static_cast<int>(testing::Scaled(2000));
  std::thread writer([&] {
    for (int i = 0; i < messages; ++i) {
      while (Put(std::to_string(i)) != RingStatus::kDone) std::this_thread::yield();
    }
  });
  for (int i = 0; i < messages; ++i) {
    while (reader_.Take(&message_) != RingStatus::kDone) reader_.Sleep(absl::Seconds(20));
    ASSERT_EQ(message_, std::to_string(i));
  }
  writer.join();
}

}  // namespace
}  // namespace sortition::service::ring_test
