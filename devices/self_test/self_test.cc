// A self-test is a series of batches, each started when the previous one has ended.
#include "devices/self_test/self_test.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/law/reference.h"

namespace sortition::devices {
namespace {

// Batches after the golden rows, which are timed: copies of a golden row, small, large and many. A batch with rows of a
// new length first runs untimed, because a driver may compile for it.
struct AfterSelfTest {
  const char* row;
  uint32_t copies;
  bool is_timed;
};
constexpr AfterSelfTest kAfterSelfTest[] = {{"one token", 1, false},
                                            {"one token", 1, true},
                                            {"model bf16, temperature only", 1, false},
                                            {"model bf16, temperature only", 1, true},
                                            {"model bf16, temperature only", 16, true}};

}  // namespace

SelfTest::SelfTest(std::vector<law::GoldenRow> rows) {
  for (law::GoldenRow& row : rows) {
    auto known = std::make_unique<Case>();
    known->row = std::move(row);
    known->tensor = law::MakeTensor(known->row);
    known->request = law::MakeRequest(known->row, known->tensor);
    known->output = law::SampleRowReference(known->request);
    cases_.push_back(std::move(known));
  }
}

// Owns itself until `done` has been called.
class SelfTest::Attempt {
 public:
  Attempt(const SelfTest* self_test, Device* device, Done done)
      : self_test_(*self_test), device_(*device), done_(std::move(done)) {
    for (const auto& known : self_test_.cases_) {
      const DeviceDescription& device = device_.description();
      if (known->request.live_vocabulary > device.max_vocabulary) continue;
      if ((kernels::FeaturesOf(known->request) & ~device.features) == 0) able_.push_back(known.get());
    }
  }

  // Starts the next batch, or ends the attempt.
  static void Continue(std::unique_ptr<Attempt> attempt) {
    Attempt& self = *attempt;
    self.ChooseBatch();
    if (self.batch_.empty()) return std::exchange(self.done_, nullptr)(std::move(self.verdict_));
    std::vector<DeviceRow> rows;
    uint64_t bytes = 0;
    for (const Case* known : self.batch_) {
      DeviceRow row;
      row.request = known->request;
      row.segments.push_back({known->tensor.data(), known->tensor.size()});
      bytes += known->tensor.size();
      rows.push_back(std::move(row));
    }
    const auto start = std::chrono::steady_clock::now();
    self.device_.Submit(std::move(rows), [attempt = std::move(attempt), start, bytes](BatchOutput result) mutable {
      const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - start);
      if (attempt->Judge(result)) attempt->Time({uint32_t(attempt->batch_.size()), bytes, took});
      Continue(std::move(attempt));
    });
  }

 private:
  void ChooseBatch() {
    batch_.clear();
    if (!verdict_.status.ok()) return;
    if (next_ < able_.size()) {
      const size_t count = std::min<size_t>(able_.size() - next_, device_.description().max_batch_rows);
      batch_.assign(able_.begin() + ptrdiff_t(next_), able_.begin() + ptrdiff_t(next_ + count));
      next_ += count;
      return;
    }
    is_timed_ = false;
    if (after_ == std::size(kAfterSelfTest)) return;
    const AfterSelfTest& next = kAfterSelfTest[after_++];
    const auto known = std::find_if(able_.begin(), able_.end(), [&](const Case* c) { return c->row.name == next.row; });
    if (known == able_.end()) return;
    batch_.assign(std::min(next.copies, device_.description().max_batch_rows), *known);
    is_timed_ = next.is_timed;
  }

  bool Judge(const BatchOutput& result) {
    verdict_.status = result.status;
    if (!result.status.ok()) return false;
    for (size_t i = 0; i < batch_.size(); ++i) {
      if (result.outputs[i] == batch_[i]->output) continue;
      verdict_.status =
          absl::DataLossError(absl::StrCat("wrong answer to the golden row \"", batch_[i]->row.name, "\""));
      return false;
    }
    verdict_.rows += uint32_t(batch_.size());
    return true;
  }

  void Time(const Timing& timing) {
    if (is_timed_) verdict_.timings.push_back(timing);
  }

  const SelfTest& self_test_;
  Device& device_;
  Done done_;
  std::vector<const Case*> able_;
  std::vector<const Case*> batch_;
  size_t next_ = 0;
  size_t after_ = 0;
  bool is_timed_ = false;  // of the running batch
  Verdict verdict_;
};

void SelfTest::Start(Device* device, Done done) const {
  Attempt::Continue(std::make_unique<Attempt>(this, device, std::move(done)));
}

SelfTest::Verdict SelfTest::Run(Device* device, absl::Duration timeout) const {
  const auto promise = std::make_shared<std::promise<Verdict>>();
  std::future<Verdict> verdict = promise->get_future();
  Start(device, [promise](Verdict given) { promise->set_value(std::move(given)); });
  // Uses the steady clock: the wall-clock time is often set soon after a machine's start.
  if (verdict.wait_for(absl::ToChronoNanoseconds(timeout)) != std::future_status::ready) {
    return {
        absl::DeadlineExceededError(absl::StrCat("the self-test did not end within ", absl::FormatDuration(timeout))),
        0,
        {}};
  }
  return verdict.get();
}

}  // namespace sortition::devices
