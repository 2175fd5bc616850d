// Clients with a shard each, all stepped at once.
#include "tests/bench/wire/ranks.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "kernels/check.h"
#include "tests/bench/model.h"
#include "tests/bench/suite.h"

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr uint32_t kRanks = 4;
constexpr size_t kRows = 16;
constexpr size_t kInputs = 4;

// One rank, or all of them: a client, its sequences and its part of all rows, in shared memory if the transport has it.
class Part {
 public:
  Part(const std::string& target, bool row_memory, uint32_t rank, uint32_t ranks, const Logits& logits)
      : tokens_(kVocabulary / ranks) {
    client::ClientOptions options;
    options.targets = {target};
    options.transport.kind = client::TransportKind::kGrpc;
    if (!row_memory) options.transport.shared_memory_bytes = 0;
    options.rows.form = client::RowFormOptions::Form::kFull;
    options.worker_session = absl::StrCat("ranks ", row_memory, " of ", ranks);
    if (ranks > 1) options.shard = client::VocabularyShard{rank, ranks, rank * tokens_, tokens_, kVocabulary};
    client_ = Connect(std::move(options));
    sequences_ = OpenSequences(client_.get(), "row", kRows, kVocabulary, ModelParameters());
    const size_t bytes = logits.row_bytes() / ranks;
    auto memory = client_->AllocateRows(logits.count() * bytes);
    SORTITION_CHECK(memory.ok());
    memory_ = *std::move(memory);
    for (size_t i = 0; i < logits.count(); ++i) {
      std::memcpy(memory_.data.get() + i * bytes, logits.row(i) + rank * bytes, bytes);
    }
  }

  void Start(size_t input, absl::BlockingCounter* left) {
    client::Batch batch{v1::DTYPE_BF16, tokens_, {}};
    for (size_t i = 0; i < kRows; ++i) {
      batch.rows.push_back({sequences_[i].get(), memory_.data.get() + (input * kRows + i) * tokens_ * 2});
    }
    const auto done = [left](const std::vector<client::RowResult>& outcomes) {
      CheckDrawn(outcomes);
      left->DecrementCount();
    };
    SORTITION_CHECK(client_->StepAsync(batch, {}, done).ok());
  }

 private:
  const uint32_t tokens_;
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  client::Client::RowMemory memory_;
};

using Parts = std::vector<std::unique_ptr<Part>>;

void Step(const Parts& parts, size_t input) {
  absl::BlockingCounter left(static_cast<int>(parts.size()));
  for (const auto& part : parts) part->Start(input, &left);
  left.Wait();
}

}  // namespace

void MeasureRanks(const std::string& target, uint32_t rounds, Report* report) {
  const Logits logits(Shape::kPeaked, kernels::DType::kBF16, kRows * kInputs, kVocabulary);
  const auto connect = [&](bool row_memory, uint32_t ranks) {
    Parts parts;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      parts.push_back(std::make_unique<Part>(target, row_memory, rank, ranks, logits));
    }
    return parts;
  };
  const Parts whole_uds = connect(/*row_memory=*/false, 1);
  const Parts ranks_uds = connect(/*row_memory=*/false, kRanks);
  const Parts whole_shm = connect(/*row_memory=*/true, 1);
  const Parts ranks_shm = connect(/*row_memory=*/true, kRanks);
  const auto medians = MeasureInterleaved(
      {
          {"whole_uds", [&](size_t i) { Step(whole_uds, i); }},
          {"ranks_uds", [&](size_t i) { Step(ranks_uds, i); }},
          {"whole_shm", [&](size_t i) { Step(whole_shm, i); }},
          {"ranks_shm", [&](size_t i) { Step(ranks_shm, i); }},
      },
      {.inputs = kInputs, .rounds = rounds, .prepare = {}, .stride = 1});
  report->Add({"ranks_uds_16", medians[1], "us", medians[0]});
  report->Add({"ranks_shm_16", medians[3], "us", medians[2]});
}

}  // namespace sortition::bench
