// Rows in pieces, and rows that may change: the same answers, and for a row that changes meanwhile the answer to some
// mixture of its contents.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::row_copy_test {
namespace {

// A tensor in pieces of up to `most` bytes, each in separate memory.
class Pieces {
 public:
  Pieces(const std::byte* tensor, size_t bytes, size_t most, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t begin = 0; begin < bytes;) {
      const size_t shift = random() % 5;
      const size_t size = std::min<size_t>(random() % (most + 1), bytes - begin);
      memory_.push_back(std::make_unique<std::byte[]>(shift + size));
      std::copy_n(tensor + begin, size, memory_.back().get() + shift);
      segments_.push_back({memory_.back().get() + shift, size});
      begin += size;
    }
  }
  std::span<const ByteSegment> segments() const { return segments_; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<ByteSegment> segments_;
};

// On every target, whole and in pieces. The former content of the room is part of no answer. Only elements of the row
// are written there, in their places.
void ExpectArrives(const RowRequest& row, const std::string& description) {
  static cpu::Scratch scratch;
  constexpr std::byte kBefore{0xff};  // makes NaNs
  const auto* const from = static_cast<const std::byte*>(row.logits);
  const size_t bytes = size_t{row.live_vocabulary} * ElementBytes(row.dtype);
  const RowOutput expected = law::SampleRowReference(row);
  std::vector<std::byte> whole(bytes + 64, kBefore);
  std::copy_n(from, bytes, whole.begin());
  const ByteSegment piece = {from, bytes};
  const Pieces small(from, bytes, 300, row.live_vocabulary);
  const Pieces large(from, bytes, 7000, row.live_vocabulary);
  for (const cpu::Target* target : cpu::RunnableTargets()) {
    for (const std::span<const ByteSegment> segments : {std::span(&piece, 1), small.segments(), large.segments()}) {
      std::vector<std::byte> room(bytes + 64, kBefore);
      RowRequest request = row;
      request.logits = room.data();
      RowOutput answer;
      cpu::SampleRow(*target, request, {segments, room.data()}, &scratch, &answer);
      ASSERT_EQ(answer, expected) << target->name << ", " << segments.size() << " pieces: " << description;
      if (row.parameters->raw_logprob && expected.error == RowFault::kNone) {
        ASSERT_TRUE(room == whole) << target->name << ", " << segments.size() << " pieces: " << description;
      }
      for (size_t i = 0; i < room.size(); ++i) ASSERT_TRUE(room[i] == whole[i] || room[i] == kBefore) << target->name;
    }
  }
}

TEST(RowCopy, EqualsReference) {
  for (uint64_t seed = testing::Scaled(1'500); seed > 0; --seed) {
    RandomRow row(7'000'000 + seed, 1 + seed * 7919 % 4000,
                  seed % 3 == 0 ? OptionsKind::kChained : OptionsKind::kPlain);
    if (seed % 2 == 0) row.AskForMore();
    ExpectArrives(row.request(), row.description());
    if (HasFatalFailure()) return;
  }
}

// The sums of top-n-sigma may come from the first pass, which copies.
TEST(RowCopy, RowsFilteredBySigmaEqualReference) {
  for (uint64_t seed = testing::Scaled(1'000); seed > 0; --seed) {
    RandomRow row(9'000'000 + seed, 1 + seed * 7919 % 9000);
    row.FilterBySigmaFirst();
    ExpectArrives(row.request(), row.description());
    if (HasFatalFailure()) return;
  }
}

TEST(RowCopy, EqualsReferenceOnGoldenRows) {
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    ExpectArrives(law::MakeRequest(row, tensor), row.name);
  }
}

// Plain greedy rows take a separate pass.
TEST(RowCopy, GreedyRowsEqualReference) {
  RowParameters greedy;
  greedy.greedy = true;
  for (uint64_t seed = testing::Scaled(1'500); seed > 0; --seed) {
    const RandomRow row(8'000'000 + seed, 1 + seed * 7919 % 4000);
    RowRequest request;
    request.dtype = row.request().dtype;
    request.logits = row.request().logits;
    request.live_vocabulary = row.request().live_vocabulary;
    request.parameters = &greedy;
    ExpectArrives(request, row.description());
    if (HasFatalFailure()) return;
  }
}

// A peaked row with top-p alone is decided by the groups of its first tokens. A flat one is copied whole.
TEST(RowCopy, TopPCopiesFewGroupsIfTheyDecide) {
  constexpr uint32_t kVocabulary = 400 * law::kGroupSize;
  constexpr std::byte kBefore{0xff};
  RowParameters parameters;
  law::Compile({.temperature = 1, .top_p = 0.9f}, &parameters);
  for (const bool is_peaked : {true, false}) {
    std::vector<float> logits(kVocabulary, is_peaked ? -20 : -1);
    for (uint32_t id = 0; id < kVocabulary; id += 5000) logits[id] = 0;
    const ByteSegment segment = {reinterpret_cast<const std::byte*>(logits.data()), kVocabulary * sizeof(float)};
    for (const cpu::Target* target : cpu::RunnableTargets()) {
      SCOPED_TRACE(::testing::Message() << target->name << " " << is_peaked);
      std::vector<std::byte> room(segment.size + 64, kBefore);
      RowRequest request;
      request.logits = room.data();
      request.live_vocabulary = kVocabulary;
      request.parameters = &parameters;
      request.noise = {.seed = 3, .position = 1, .stream = 0};
      cpu::Scratch scratch;
      RowOutput answer;
      cpu::SampleRow(*target, request, {{&segment, 1}, room.data()}, &scratch, &answer);
      const auto untouched = std::ranges::count(room, kBefore);
      EXPECT_TRUE(is_peaked ? size_t(untouched) > segment.size / 2 : untouched == 64) << untouched;
      request.logits = logits.data();
      EXPECT_EQ(answer, law::SampleRowReference(request));
    }
  }
}

// Memory at two addresses, as two processes have it.
class TwiceMapped {
 public:
  explicit TwiceMapped(size_t bytes) : bytes_(bytes), file_(memfd_create("rows", 0)) {
    if (file_ < 0 || ftruncate(file_, off_t(bytes)) != 0) return;
    reader_ = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_, 0);
    writer_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  }
  ~TwiceMapped() {
    if (reader_ != MAP_FAILED) munmap(reader_, bytes_);
    if (writer_ != MAP_FAILED) munmap(writer_, bytes_);
    if (file_ >= 0) close(file_);
  }
  TwiceMapped(const TwiceMapped&) = delete;
  TwiceMapped& operator=(const TwiceMapped&) = delete;

  bool ok() const { return reader_ != MAP_FAILED && writer_ != MAP_FAILED; }
  const std::byte* reader() const { return static_cast<const std::byte*>(reader_); }
  std::byte* writer() const { return static_cast<std::byte*>(writer_); }

 private:
  const size_t bytes_;
  const int file_;
  void* reader_ = MAP_FAILED;
  void* writer_ = MAP_FAILED;
};

// Logits between -8 and 8, as f32 and as bf16.
std::vector<uint32_t> Logits(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> logits(count);
  for (uint32_t& bits : logits) {
    const uint32_t half = std::bit_cast<uint32_t>(float(int64_t(random() % 16001) - 8000) / 1000) >> 16;
    bits = half << 16 | half;
  }
  return logits;
}

// Holds for any token that a greedy row may give: as a float, the largest logit that was seen is not below the smaller
// of both contents, and the token had a logit as large when its neighbours were copied.
void ExpectAmongTheFirst(const RowRequest& row, const std::vector<uint32_t> (&contents)[2], const RowOutput& answer) {
  const auto value = [&](int content, uint32_t token) {
    RowRequest request = row;
    request.logits = contents[content].data();
    return std::bit_cast<float>(cpu::SentBits(request, token));
  };
  float least = -8;
  for (uint32_t id = 0; id < row.live_vocabulary; ++id) least = std::max(least, std::min(value(0, id), value(1, id)));
  EXPECT_EQ(answer.error, RowFault::kNone);
  EXPECT_GE(std::max(value(0, answer.token), value(1, answer.token)), least);
}

// Returns the row that a lazy copy stands for: the groups that were copied, and for each other group one token of the
// largest key that was read. `before` is the room's former content.
std::vector<std::byte> RowReadFrom(const std::vector<std::byte>& room, std::byte before, const RowRequest& request,
                                   const cpu::Scratch& scratch) {
  std::vector<std::byte> row = room;
  const size_t bytes = ElementBytes(request.dtype);
  const size_t group_bytes = law::kGroupSize * bytes;
  for (uint32_t group = 0; group < request.live_vocabulary / law::kGroupSize; ++group) {
    std::byte* const elements = row.data() + group * group_bytes;
    if (!std::all_of(elements, elements + group_bytes, [&](std::byte b) { return b == before; })) continue;
    cpu::LazyCopy unused({}, nullptr);
    cpu::ReplaceChanged(request.dtype, scratch.raw_maxima.data()[group], elements, &unused);
  }
  return row;
}

// Samples a row that a thread changes meanwhile, as the n-th on a target; returns the answer. Expects the answer of the
// row in the copy, unless the row is greedy.
RowOutput SampleChangingRow(const cpu::Target& target, const ByteSegment& segment, const RowParameters& parameters,
                            uint64_t n, RowRequest* request) {
  constexpr std::byte kBefore{0xff};
  std::vector<std::byte> room(segment.size, kBefore);
  cpu::Scratch scratch;
  request->dtype = n % 2 == 0 ? DType::kBF16 : DType::kF32;
  request->live_vocabulary = uint32_t(segment.size / sizeof(uint32_t));
  request->parameters = &parameters;
  request->noise = {n, 0, 0};
  request->logits = room.data();
  RowOutput answer;
  cpu::SampleRow(target, *request, {{&segment, 1}, room.data()}, &scratch, &answer);
  if (!parameters.greedy) {
    const std::vector<std::byte> row = RowReadFrom(room, kBefore, *request, scratch);
    request->logits = row.data();
    EXPECT_EQ(answer, law::SampleRowReference(*request)) << target.name << " " << n;
  }
  request->logits = nullptr;
  return answer;
}

// A byte that is read a second time after it has changed shows in an answer that is not the copy's.
TEST(RowCopy, CopyOfAChangingRowIsSampled) {
  constexpr uint32_t kVocabulary = 20'011;
  constexpr size_t kBytes = kVocabulary * sizeof(uint32_t);
  const std::vector<uint32_t> contents[] = {Logits(1, kVocabulary), Logits(2, kVocabulary)};
  const TwiceMapped memory(kBytes);
  ASSERT_TRUE(memory.ok());
  std::memcpy(memory.writer(), contents[0].data(), kBytes);
  std::atomic<bool> over = false;
  std::thread scribbler([&] {
    for (int turn = 1; !over; ++turn) std::memcpy(memory.writer(), contents[turn % 2].data(), kBytes);
  });
  RowParameters drawn;
  law::Compile({.temperature = 0.8f, .top_k = 50, .top_p = 0.95f}, &drawn);
  RowParameters described = drawn;
  described.raw_logprob = true;
  RowParameters unfiltered;
  law::Compile({.temperature = 0.8f}, &unfiltered);
  RowParameters with_top_p;
  law::Compile({.temperature = 0.8f, .top_p = 0.5f}, &with_top_p);
  RowParameters greedy;
  greedy.greedy = true;
  const RowParameters* const kinds[] = {&described, &drawn, &unfiltered, &with_top_p, &greedy};
  const ByteSegment segment = {memory.reader(), kBytes};
  for (uint64_t n = 0; n < testing::Scaled(100); ++n) {
    for (const cpu::Target* target : cpu::RunnableTargets()) {
      RowRequest request;
      const RowOutput answer = SampleChangingRow(*target, segment, *kinds[n / 2 % 5], n, &request);
      if (request.parameters->greedy) ExpectAmongTheFirst(request, contents, answer);
    }
    if (HasFailure()) break;
  }
  over = true;
  scribbler.join();
}

// The last step of the first pass may read groups of the step before it again. Here one of these has the row's largest
// token, on and off.
TEST(RowCopy, GroupThatIsReadTwiceMayChange) {
  constexpr uint32_t kVocabulary = 72 * law::kGroupSize;  // no multiple of a step's groups, which are up to 32
  constexpr size_t kBytes = kVocabulary * sizeof(uint32_t);
  const TwiceMapped memory(kBytes);
  ASSERT_TRUE(memory.ok());
  std::memcpy(memory.writer(), Logits(3, kVocabulary).data(), kBytes);
  std::atomic<bool> over = false;
  std::thread scribbler([&] {
    const float values[] = {-8, 9};
    for (int turn = 0; !over; ++turn) {
      for (const uint32_t group : {45, 50, 60, 63}) {  // as elements of either size
        const auto token = reinterpret_cast<std::atomic_uint32_t*>(memory.writer()) + group * law::kGroupSize / 2;
        token->store(std::bit_cast<uint32_t>(values[turn % 2]), std::memory_order_relaxed);
        token[group * law::kGroupSize / 2].store(std::bit_cast<uint32_t>(values[turn % 2]), std::memory_order_relaxed);
      }
    }
  });
  RowParameters drawn;
  law::Compile({.temperature = 0.8f, .top_k = 50}, &drawn);
  RowParameters described = drawn;
  described.raw_logprob = true;
  const ByteSegment segment = {memory.reader(), kBytes};
  for (uint64_t n = 0; n < testing::Scaled(1000); ++n) {
    for (const cpu::Target* target : cpu::RunnableTargets()) {
      RowRequest request;
      SampleChangingRow(*target, segment, n / 2 % 2 == 0 ? drawn : described, n, &request);
    }
    if (HasFailure()) break;
  }
  over = true;
  scribbler.join();
}

}  // namespace
}  // namespace sortition::kernels::row_copy_test
