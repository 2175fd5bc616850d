// A stream to a server that makes receipts, and a verifier of these.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/receipts/receipt_check.h"
#include "service/receipt/receipt_book.h"
#include "tests/support/judged_rows.h"
#include "tests/support/receipt_folder.h"

namespace sortition::service {

using client::ReceiptCheck;
using testing::MakeClose;
using testing::MakeOpen;
using testing::ReceiptFolder;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

// Counts by name.
class CountingReceipts : public NullObserver {
 public:
  void Count(Counter counter, uint64_t count) override { counts_.at(static_cast<size_t>(counter)) += count; }
  uint64_t operator[](Counter counter) const { return counts_.at(static_cast<size_t>(counter)); }

 private:
  std::array<std::atomic<uint64_t>, 64> counts_ = {};
};

// A stream to a server with a key.
class SessionReceipts : public ::testing::Test {
 protected:
  void Begin(ReceiptSettings settings = {}) {
    settings.key_file = folder_.key_file();
    settings_ = settings;
    auto book = ReceiptBook::Start(settings, &counts_, &log_);
    ASSERT_TRUE(book.ok()) << book.status();
    book_ = *std::move(book);
    engine_.emplace(TestEngine::OnCpuWith(book_.get()));
    worker_.emplace(engine_->get());
  }
  ReceiptSettings ToFiles() const {
    ReceiptSettings settings;
    settings.folder = folder_.path();
    return settings;
  }
  // Stops the server, which then writes waiting receipts.
  void End() {
    worker_.reset();
    engine_.reset();
    book_.reset();
  }

  v1::OpenSequence Open(std::string_view id = "a") {
    v1::OpenSequence open = MakeOpen(id, 1, kModelVocabulary);
    open.set_seed(77);
    open.mutable_parameters()->set_top_k(9);
    open.mutable_receipts();
    return open;
  }
  // Opens, and keeps the records and the opening of the seed.
  v1::OpenedState MustOpen(const v1::OpenSequence& open) {
    v1::OpenedState state = worker_->MustOpen(open);
    records_ += state.receipts();
    client::SeedOpening seed{state.seed(), {}};
    EXPECT_EQ(state.receipt_salt().size(), seed.salt.size());
    std::ranges::copy(state.receipt_salt(), seed.salt.begin());
    seeds_.push_back(seed);
    return state;
  }
  v1::RowResult Run(const StepBuilder& step) {
    const std::vector<v1::RowResult> results = worker_->Run(step.Build());
    EXPECT_EQ(results.size(), 1u);
    if (results.size() != 1) return {};
    records_ += results[0].receipts();
    return results[0];
  }
  v1::RowResult Draw(uint32_t position, std::string_view id = "a") {
    StepBuilder step(position + 1, kModelVocabulary);
    step.AddRow(id, position + 1, position, LogitsAfter({}, position));
    return Run(step);
  }
  void Close() {
    worker_->Send(MakeClose("a", 1));
    const auto closed = worker_->Await([](const v1::StreamResponse& response) { return response.has_closed(); });
    ASSERT_TRUE(closed);
    records_ += closed->closed().receipts();
  }
  ReceiptCheck Check(const std::vector<std::string>& files) const {
    ReceiptCheck check({{folder_.public_key()}, seeds_});
    for (const std::string& file : files) {
      check.Read(file);
      check.EndFile();
    }
    check.Finish();
    for (const client::ReceiptProblem& problem : check.problems())
      ADD_FAILURE() << problem.name << " " << problem.detail;
    return check;
  }

  ReceiptFolder folder_;
  CountingReceipts counts_;
  NullEventLog log_;
  ReceiptSettings settings_;
  std::unique_ptr<ReceiptBook> book_;
  std::optional<TestEngine> engine_;
  std::optional<StreamWorker> worker_;
  std::string records_;  // as the worker got them
  std::vector<client::SeedOpening> seeds_;
};

}  // namespace sortition::service
