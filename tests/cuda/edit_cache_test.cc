// The cache of logit edits: it saves uploads, and no output depends on it.
#include "devices/cuda/edit_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "kernels/law/parameters.h"
#include "tests/cuda/device_batch.h"
#include "tests/cuda/fake_driver.h"
#include "tests/support/scale.h"

namespace sortition::devices::cuda {
namespace {

using kernels::EditOrigin;
using kernels::LogitEdit;
using kernels::RowRequest;
using kernels::cuda::EditPath;
using testing::FakeCudaDriver;
using testing::RunBatch;
using testing::StartOn;

// A list of edits that changes one token at a time, like a sequence's.
class EditList {
 public:
  EditList(uint64_t name, uint32_t vocabulary, uint32_t count) : vocabulary_(vocabulary), random_(name) {
    origin_.list = name;
    while (edits_.size() < count) Set(Token());
  }

  void Change() {
    ++origin_.version;
    Push();
  }
  // Later changes have no name.
  void GoAhead() {
    ++origin_.ahead;
    Push();
  }
  size_t size() const { return edits_.size(); }
  void PutInto(RowRequest* request) const {
    request->edits = edits_;
    request->edit_origin = origin_;
    request->edit_origin.changed = changed_;
  }

 private:
  uint32_t Token() { return uint32_t(random_() % vocabulary_); }
  void Set(uint32_t token) {
    const auto at = std::ranges::lower_bound(edits_, token, {}, &LogitEdit::token);
    const bool is_known = at != edits_.end() && at->token == token;
    // Some edits do nothing.
    const LogitEdit edit = {token, random_() % 2 == 0 ? LogitEdit::kRepeated : 0u,
                            random_() % 3 == 0 ? law::CanonicalBits(1.25f) : 0u,
                            random_() % 2 == 0 ? law::PenaltyBits(0.5f, 0.25f, uint32_t(random_() % 4)) : 0u};
    if (is_known) {
      *at = edit;
    } else {
      edits_.insert(at, edit);
    }
  }
  void Push() {
    const uint32_t token = random_() % 3 == 0 && !changed_.empty() ? changed_.back() : Token();
    const auto at = std::ranges::find(edits_, token, &LogitEdit::token);
    if (at != edits_.end() && random_() % 2 == 0) {
      edits_.erase(at);
    } else {
      Set(token);
    }
    changed_.push_back(token);
    if (changed_.size() > 8) changed_.erase(changed_.begin());
  }

  uint32_t vocabulary_;
  std::mt19937_64 random_;
  std::vector<LogitEdit> edits_;
  EditOrigin origin_;
  std::vector<uint32_t> changed_;
};

// Rows with copies of lists, taken when the row was added.
class ListedRows {
 public:
  explicit ListedRows(uint32_t vocabulary) : vocabulary_(vocabulary) {}

  void Add(const EditList& list, uint64_t seed) {
    lists_.push_back(std::make_unique<EditList>(list));
    const auto options = seed % 3 == 1 ? kernels::RowOptions::kChained : kernels::RowOptions::kPlain;
    // Takes this seed, or a later one, until the row has no padding.
    std::unique_ptr<kernels::RandomRow> row;
    for (; row == nullptr || row->request().live_vocabulary != vocabulary_; seed += 1000) {
      row = std::make_unique<kernels::RandomRow>(seed, vocabulary_, options);
    }
    random_.push_back(std::move(row));
  }
  std::vector<DeviceRow> Batch() const {
    std::vector<DeviceRow> batch;
    for (size_t i = 0; i < random_.size(); ++i) {
      batch.emplace_back().request = RequestOf(i);
      batch.back().segments.push_back({random_[i]->tensor().data(), random_[i]->tensor().size()});
    }
    return batch;
  }
  void ExpectRight(const BatchOutput& result) const {
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.outputs.size(), random_.size());
    for (size_t i = 0; i < random_.size(); ++i) {
      EXPECT_EQ(result.outputs[i], law::SampleRowReference(RequestOf(i))) << random_[i]->description();
    }
  }
  uint64_t logits_bytes() const {
    uint64_t bytes = 0;
    for (const auto& row : random_) bytes += row->tensor().size();
    return bytes;
  }

 private:
  RowRequest RequestOf(size_t row) const {
    RowRequest request = random_[row]->request();
    lists_[row]->PutInto(&request);
    return request;
  }

  const uint32_t vocabulary_;
  std::vector<std::unique_ptr<EditList>> lists_;
  std::vector<std::unique_ptr<kernels::RandomRow>> random_;
};

constexpr uint32_t kVocabulary = 700;

std::vector<EditList> Lists(int count, uint32_t edits = 200) {
  std::vector<EditList> lists;
  for (int i = 0; i < count; ++i) lists.emplace_back(100 + i, kVocabulary, edits);
  return lists;
}

TEST(CudaEditCache, StepUploadsChangesOnly) {
  constexpr uint32_t kEdits = 2000;
  const FakeCudaDriver driver;
  const auto device = StartOn(driver);
  std::vector<EditList> lists;
  for (int i = 0; i < 3; ++i) lists.emplace_back(1 + i, 6000, kEdits);
  std::vector<uint64_t> beside_logits;
  for (uint64_t step = 0; step < 4; ++step) {
    ListedRows rows(6000);
    for (EditList& list : lists) {
      if (step > 0) list.Change();
      if (step == 3) list.Change();
      rows.Add(list, 3 * (step + 1));
    }
    const uint64_t before = driver.uploaded_bytes();
    const BatchOutput result = RunBatch(device.get(), rows.Batch());
    beside_logits.push_back(driver.uploaded_bytes() - before - rows.logits_bytes());
    rows.ExpectRight(result);
  }
  EXPECT_GT(beside_logits[0], 3 * kEdits * sizeof(LogitEdit));
  for (const size_t step : {1, 2, 3}) EXPECT_LT(beside_logits[step], 3 * 2048u) << step;
  EXPECT_EQ(driver.launches(kernels::cuda::kMergeKernel), 4u);
}

TEST(CudaEditCache, UnnamedListsAreUploadedWhole) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver);
  for (uint64_t step = 0; step < 2; ++step) {
    ListedRows rows(kVocabulary);
    rows.Add(EditList(0, kVocabulary, 300), 1);
    rows.Add(EditList(1, kVocabulary, EditCache::kLeastEdits - 1), 2);
    rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  }
  const auto none = StartOn(driver, {.max_edit_cache_bytes = 0});
  for (uint64_t step = 0; step < 2; ++step) {
    ListedRows rows(kVocabulary);
    rows.Add(EditList(2, kVocabulary, 300), 3);
    rows.ExpectRight(RunBatch(none.get(), rows.Batch()));
  }
  EXPECT_EQ(driver.launches(kernels::cuda::kMergeKernel), 0u);
}

// Steps of lists: consecutive ones, repeated ones, one of long ago, and look-aheads; in one batch or in several at
// once. Rows are split into chunks or not, and the cache has room for all lists or for few.
class CudaEditCacheSteps : public ::testing::TestWithParam<std::pair<uint64_t, uint64_t>> {};

TEST_P(CudaEditCacheSteps, EqualReference) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver, {.max_batch_bytes = GetParam().first, .max_edit_cache_bytes = GetParam().second});
  std::vector<EditList> lists = Lists(4, 90);
  const std::vector<EditList> old = lists;
  std::mt19937 random(5);
  uint64_t seed = 1;
  for (uint64_t step = 0; step < std::max<uint64_t>(testing::Scaled(16), 4); ++step) {
    std::vector<ListedRows> batches;
    for (int i = 0; i < 2; ++i) batches.emplace_back(kVocabulary);
    for (size_t i = 0; i < lists.size(); ++i) {
      EditList& list = lists[i];
      for (uint32_t changes = random() % (random() % 5 == 0 ? 12 : 3); changes > 0; --changes) list.Change();
      ListedRows& rows = batches[random() % 2];
      const bool is_first = random() % 3 != 0;
      if (is_first) rows.Add(list, ++seed);
      EditList ahead = list;
      for (uint32_t positions = random() % 4; positions > 0; --positions) {
        ahead.GoAhead();
        batches[random() % 6 == 0].Add(ahead, ++seed);
      }
      if (!is_first) rows.Add(list, ++seed);
      if (random() % 4 == 0) batches[random() % 2].Add(list, ++seed);
      if (random() % 8 == 0) rows.Add(old[i], ++seed);
    }
    std::vector<BatchOutput> results(batches.size());
    absl::BlockingCounter left(int(batches.size()));
    for (size_t i = 0; i < batches.size(); ++i) {
      std::vector<DeviceRow> rows = batches[i].Batch();
      if (rows.empty()) {
        left.DecrementCount();
        continue;
      }
      device->Submit(std::move(rows), [&, i](BatchOutput result) {
        results[i] = std::move(result);
        left.DecrementCount();
      });
    }
    left.Wait();
    for (size_t i = 0; i < batches.size(); ++i) batches[i].ExpectRight(results[i]);
  }
  EXPECT_GE(driver.launches(kernels::cuda::kMergeKernel), testing::Scaled(10));
}

INSTANTIATE_TEST_SUITE_P(Rooms, CudaEditCacheSteps,
                         ::testing::Values(std::pair{uint64_t{512} << 20, uint64_t{256} << 20},
                                           std::pair{uint64_t{60'000}, uint64_t{256} << 20},
                                           std::pair{uint64_t{512} << 20, uint64_t{9'000}}));

TEST(CudaEditCache, ErrorDropsAll) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver, {.batches_in_flight = 1});
  std::vector<EditList> lists = Lists(2);
  const auto step = [&](uint64_t seed) {
    ListedRows rows(kVocabulary);
    for (EditList& list : lists) {
      list.Change();
      rows.Add(list, seed);
    }
    return rows;
  };
  uint64_t seed = 30;
  for (const char* function : {"MemcpyHtoDAsync", "LaunchKernel", "EventRecord", "MemcpyDtoHAsync"}) {
    const ListedRows first = step(++seed);
    first.ExpectRight(RunBatch(device.get(), first.Batch()));
    driver.Fail(function, Result(701));
    EXPECT_EQ(RunBatch(device.get(), step(++seed).Batch()).status.code(), absl::StatusCode::kInternal) << function;
    const uint64_t before = driver.uploaded_bytes();
    const ListedRows next = step(++seed);
    next.ExpectRight(RunBatch(device.get(), next.Batch()));
    EXPECT_GT(driver.uploaded_bytes() - before, next.logits_bytes() + 2 * 190 * sizeof(LogitEdit)) << function;
  }
}

TEST(CudaEditCache, NoMemoryMeansUpload) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver, {.batches_in_flight = 1});
  ListedRows rows(kVocabulary);
  for (const EditList& list : Lists(3)) rows.Add(list, 7);
  driver.Fail("MemAllocAsync", Result::kOutOfMemory);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  EXPECT_EQ(driver.launches(kernels::cuda::kMergeKernel), 0u);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  EXPECT_EQ(driver.launches(kernels::cuda::kMergeKernel), 1u);
}

TEST(CudaEditCache, YieldMemoryToBatch) {
  const FakeCudaDriver driver({.memory_bytes = 200'000});
  const auto device = StartOn(driver, {.batches_in_flight = 1});
  ListedRows rows(kVocabulary);
  for (const EditList& list : Lists(4, 400)) rows.Add(list, 7);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  EXPECT_EQ(driver.launches(kernels::cuda::kMergeKernel), 1u);
  const testing::Rows large(1, 30'000, 2);
  large.ExpectRight(RunBatch(device.get(), large.Batch()));
  const uint64_t before = driver.uploaded_bytes();
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  EXPECT_GT(driver.uploaded_bytes() - before, rows.logits_bytes() + 4 * 400 * sizeof(LogitEdit));
}

// Chunks over a driver, without kernels.
class CudaEditCacheLease : public ::testing::Test {
 protected:
  CudaEditCacheLease() {
    const auto context = Context::Create(driver_.api(), FindHardware(driver_.api())->front(), FakeCudaDriver::Images());
    EXPECT_TRUE(context.ok());
    context_ = *context;
    current_ = std::make_unique<CurrentContext>(*context_);
  }
  ~CudaEditCacheLease() override { current_.reset(); }

  void MakeCache(uint64_t most_bytes) { cache_ = std::make_unique<EditCache>(context_, most_bytes); }
  EditPath PathOf(const EditList& list, EditCache::Lease* chunk) {
    RowRequest request;
    list.PutInto(&request);
    return chunk->PathOf(request);
  }
  // Runs the list in a chunk alone.
  EditPath Run(const EditList& list) {
    EditCache::Lease chunk(cache_.get(), nullptr);
    const EditPath path = PathOf(list, &chunk);
    chunk.Keep();
    return path;
  }
  static bool IsUpload(const EditPath& path) { return !path.is_merged; }
  static bool IsWhole(const EditPath& path) { return path.is_merged && path.from_count == 0 && path.to != 0; }
  static bool IsChange(const EditPath& path) { return path.is_merged && path.from_count != 0; }

  FakeCudaDriver driver_;
  std::shared_ptr<Context> context_;
  std::unique_ptr<CurrentContext> current_;
  std::unique_ptr<EditCache> cache_;
};

TEST_F(CudaEditCacheLease, ListChangesFromOneHalfToTheOther) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  const EditPath whole = Run(list);
  ASSERT_TRUE(IsWhole(whole));
  list.Change();
  const EditPath change = Run(list);
  ASSERT_TRUE(IsChange(change));
  EXPECT_EQ(change.from, whole.to);
  EXPECT_NE(change.to, whole.to);
  list.Change();
  EXPECT_EQ(Run(list).from, change.to);
  // The list again: the entry has it.
  const EditPath again = Run(list);
  EXPECT_TRUE(again.is_merged && again.changes.empty());
  EXPECT_EQ(again.from, whole.to);
}

TEST_F(CudaEditCacheLease, OneRowPerChunkIsKept) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  const EditPath whole = Run(list);
  EditList ahead = list;
  ahead.GoAhead();
  EditCache::Lease chunk(cache_.get(), nullptr);
  list.Change();
  const EditPath first = PathOf(list, &chunk);
  list.Change();
  const EditPath second = PathOf(list, &chunk);
  const EditPath third = PathOf(ahead, &chunk);
  for (const EditPath& path : {first, second, third}) EXPECT_EQ(path.from, whole.to);
  EXPECT_NE(first.to, 0u);
  EXPECT_EQ(second.to, 0u);
  EXPECT_EQ(third.to, 0u);
  chunk.Keep();
  EXPECT_EQ(Run(list).from, first.to);
}

TEST_F(CudaEditCacheLease, ChunksNeverShareOne) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  Run(list);
  EditCache::Lease one(cache_.get(), nullptr);
  EXPECT_TRUE(IsChange(PathOf(list, &one)));
  EditCache::Lease other(cache_.get(), nullptr);
  EXPECT_TRUE(IsUpload(PathOf(list, &other)));
  one.Keep();
  list.Change();
  EXPECT_TRUE(IsChange(PathOf(list, &other)));
  other.Keep();
}

TEST_F(CudaEditCacheLease, RevertedListIsNotKept) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  {
    EditCache::Lease chunk(cache_.get(), nullptr);
    EXPECT_TRUE(IsWhole(PathOf(list, &chunk)));
    chunk.TakeBack();
    chunk.Keep();
  }
  const EditPath whole = Run(list);
  EXPECT_TRUE(IsWhole(whole));
  EditList changed = list;
  changed.Change();
  {
    EditCache::Lease chunk(cache_.get(), nullptr);
    EXPECT_NE(PathOf(changed, &chunk).to, 0u);
    chunk.TakeBack();
    chunk.Keep();
  }
  const EditPath still = Run(list);
  EXPECT_TRUE(still.is_merged && still.changes.empty());
  EXPECT_EQ(still.from, whole.to);
}

TEST_F(CudaEditCacheLease, OlderOrUnnamedListChangesNothing) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  const EditList old = list;
  EditList ahead = list;
  ahead.GoAhead();
  EXPECT_TRUE(IsUpload(Run(ahead)));
  list.Change();
  const EditPath whole = Run(list);
  EXPECT_TRUE(IsWhole(whole));
  EXPECT_TRUE(IsUpload(Run(old)));
  EXPECT_TRUE(IsUpload(Run(ahead)));  // from a version before the entry's
  EXPECT_EQ(Run(list).from, whole.to);
  for (int i = 0; i < 9; ++i) list.Change();  // one more than the log remembers
  EXPECT_TRUE(IsWhole(Run(list)));
}

TEST_F(CudaEditCacheLease, GrowsWithItsList) {
  MakeCache(1 << 20);
  EditList list(1, kVocabulary, 100);
  Run(list);
  const uint64_t small = cache_->bytes();
  EXPECT_LT(small, 6000u);
  EditList before = list;
  for (list.Change(); 2 * list.size() * sizeof(LogitEdit) <= small; list.Change()) {
    ASSERT_TRUE(IsChange(Run(list)));
    before = list;
  }
  {
    // An earlier row reads the entry, so it stays, whether the changes are known or not.
    EditList forgotten = list;
    for (int i = 0; i < 9; ++i) forgotten.Change();
    EditCache::Lease chunk(cache_.get(), nullptr);
    EXPECT_TRUE(PathOf(before, &chunk).is_merged);
    const EditPath path = PathOf(list, &chunk);
    EXPECT_TRUE(IsChange(path));
    EXPECT_EQ(path.to, 0u);
    EXPECT_TRUE(IsUpload(PathOf(forgotten, &chunk)));
    chunk.Keep();
    EXPECT_EQ(cache_->bytes(), small);
  }
  EXPECT_TRUE(IsWhole(Run(list)));
  EXPECT_GT(cache_->bytes(), small);
}

TEST_F(CudaEditCacheLease, NoRoomEvictsIdleOnly) {
  MakeCache(10'000);
  std::vector<EditList> lists = Lists(3, 100);
  EXPECT_TRUE(IsWhole(Run(lists[0])));
  EXPECT_TRUE(IsWhole(Run(lists[1])));
  for (uint64_t chunk = 1; chunk < EditCache::kIdleChunks - 1; chunk += 2) {
    ASSERT_TRUE(IsUpload(Run(lists[2]))) << chunk;
    ASSERT_FALSE(IsUpload(Run(lists[1])));
  }
  EXPECT_TRUE(IsWhole(Run(lists[2])));
  EXPECT_FALSE(IsUpload(Run(lists[1])));
  EXPECT_TRUE(IsUpload(Run(lists[0])));
  EXPECT_LE(cache_->bytes(), 10'000u);
}

TEST_F(CudaEditCacheLease, FailedChunkDropsAll) {
  MakeCache(1 << 20);
  std::vector<EditList> lists = Lists(3, 100);
  for (const EditList& list : lists) Run(list);
  EditCache::Lease beside(cache_.get(), nullptr);
  EXPECT_TRUE(IsChange(PathOf(lists[0], &beside)));
  {
    EditCache::Lease failing(cache_.get(), nullptr);
    EXPECT_TRUE(IsChange(PathOf(lists[1], &failing)));
  }
  EXPECT_GT(cache_->bytes(), 0u);  // entries of the other chunk
  beside.Keep();
  EXPECT_EQ(cache_->bytes(), 0u);
  for (const EditList& list : lists) EXPECT_TRUE(IsWhole(Run(list)));
}

}  // namespace
}  // namespace sortition::devices::cuda
