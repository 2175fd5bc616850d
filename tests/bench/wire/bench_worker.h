// A client of the benchmarks with its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "kernels/check.h"
#include "sortition/client.h"
#include "sortition/in_process.h"
#include "tests/bench/model.h"

namespace sortition::bench {

using client::TransportKind;

inline constexpr uint32_t kWide = 1 << 18;  // floats of a row of 1 MB

class Worker {
 public:
  // An empty `target` means in process.
  Worker(const std::string& target, TransportKind kind, uint64_t message_bytes, bool row_memory = true) {
    client::ClientOptions options;
    if (!row_memory) options.transport.shared_memory_bytes = 0;
    if (!target.empty()) options.targets = {target};
    options.transport.kind = kind;
    options.limits.message_bytes = message_bytes;
    options.rows.form = client::RowFormOptions::Form::kFull;
    if (target.empty()) options.in_process = client::InProcessEngine(1);
    client_ = Connect(std::move(options));
  }

  void Open(size_t count, uint32_t vocabulary, const v1::SamplingParameters& parameters) {
    auto opened = OpenSequences(client_.get(), absl::StrCat("bench-", vocabulary), count, vocabulary, parameters);
    for (auto& sequence : opened) sequences_.push_back(std::move(sequence));
  }

  // Sends one row a batch, all in flight at once.
  void StepEach(std::span<const std::span<const std::byte>> rows) {
    absl::BlockingCounter left(static_cast<int>(rows.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto done = [&left](const std::vector<client::RowResult>& outcomes) {
        CheckDrawn(outcomes);
        left.DecrementCount();
      };
      const client::Batch batch{v1::DTYPE_F32, kWide, {{sequences_[i].get(), rows[i].data()}}};
      SORTITION_CHECK(client_->StepAsync(batch, {}, done).ok());
    }
    left.Wait();
  }

  // Sends one batch of rows that lie one after the other.
  void Step(v1::DType dtype, uint32_t vocabulary, const std::byte* rows, size_t count, size_t stride) {
    client::Batch batch{dtype, vocabulary, {}};
    for (size_t i = 0; i < count; ++i) batch.rows.push_back({sequences_[i].get(), rows + i * stride});
    StepAll(client_.get(), batch);
  }

  client::Client& client() { return *client_; }

 private:
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
};

}  // namespace sortition::bench
