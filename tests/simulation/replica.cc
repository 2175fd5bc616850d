// The device, the randomness and the observer of a simulated replica.
#include "tests/simulation/replica.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/sample_row.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {

// Samples with the CPU's kernel, some time after it was given a batch. Keeps copies of edits, as a GPU does.
class Replica::SimulatedDevice final : public devices::Device {
 public:
  explicit SimulatedDevice(Replica* replica) : replica_(*replica) {}

  const devices::DeviceDescription& description() const override { return description_; }

  void Submit(std::vector<devices::DeviceRow> rows, Done done) override {
    const uint64_t batch = ++replica_.batches_;
    pending_->emplace(batch, Batch{std::move(rows), std::move(done)});
    const uint64_t draw = Draw(replica_.world_.seed, Choice::kServiceTime, {replica_.index_, batch});
    const absl::Time now = replica_.timeline_.Now();
    const absl::Time end = std::max(now, replica_.stalled_until) + replica_.world_.max_service * (draw % 1000) / 1000;
    const bool broken = now < replica_.broken_until;
    const Plant plant = replica_.world_.plant;
    replica_.timeline_.At(end, [this, pending = std::weak_ptr(pending_), batch, broken, plant] {
      if (const auto alive = pending.lock()) Run(batch, broken, plant);
    });
  }

  void RunAll() {
    while (!pending_->empty()) Run(pending_->begin()->first, /*broken=*/true, Plant::kNone);
  }

 private:
  struct Batch {
    std::vector<devices::DeviceRow> rows;
    Done done;
  };
  using Pending = std::map<uint64_t, Batch>;

  void Run(uint64_t number, bool broken, Plant plant) {
    auto node = pending_->extract(number);
    if (node.empty()) return;
    Batch& batch = node.mapped();
    devices::BatchOutput result;
    if (broken) result.status = absl::InternalError("the device is broken");
    for (devices::DeviceRow& row : batch.rows) {
      if (broken) break;
      std::vector<std::byte> bytes;
      for (const devices::ByteSegment& segment : row.segments) {
        bytes.insert(bytes.end(), segment.data, segment.data + segment.size);
      }
      row.request.logits = bytes.data();
      kernels::cpu::Scratch scratch;
      kernels::cpu::SampleRow(row.request, &scratch, &result.outputs.emplace_back());
    }
    if (plant == Plant::kSwappedRows && result.outputs.size() > 1) {
      std::swap(result.outputs[0].token, result.outputs[1].token);
    }
    std::move(batch.done)(std::move(result));
  }

  Replica& replica_;
  const devices::DeviceDescription description_{.name = "simulated",
                                                .kind = "cpu",
                                                .hardware = "none",
                                                .max_batch_rows = 4,
                                                .batches_in_flight = 2,
                                                .features = kernels::kAllFeatures};
  const std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
};

class Replica::TallyObserver final : public service::NullObserver {
 public:
  explicit TallyObserver(Tally* tally) : tally_(*tally) {}
  void BatchDone(std::string_view, uint32_t, absl::Duration, absl::Duration) override { ++tally_.batches; }
  void Count(service::Counter counter, uint64_t count) override {
    if (counter >= service::Counter::kEvictedByCount && counter <= service::Counter::kEvictedByOperator) {
      tally_.evicted_sequences += count;
    }
    if (counter == service::Counter::kReplayedTokens) tally_.replayed_tokens += count;
  }
  void CompactRows(const service::CompactRowCounts& counts) override {
    const uint32_t required = std::accumulate(counts.required.begin(), counts.required.end(), 0u);
    tally_.compact_rows += counts.decided + required;
    tally_.required_rows += required;
  }
  void Refused(service::Reason reason, std::string_view, uint32_t count) override {
    if (reason == service::Reason::kSuperseded) tally_.superseded += count;
    if (reason == service::Reason::kOverloaded) tally_.overloaded += count;
    if (reason == service::Reason::kHistoryRequired) tally_.history_required += count;
  }

 private:
  Tally& tally_;
};

class Replica::SimulatedEntropy final : public service::Entropy {
 public:
  SimulatedEntropy(uint64_t seed, uint32_t index) : draws_(seed, Choice::kSeed, {index}) {}
  uint64_t Draw() override { return draws_.Next(); }

 private:
  Draws draws_;
};

class Replica::TallyLog final : public service::NullEventLog {
 public:
  explicit TallyLog(Tally* tally) : tally_(*tally) {}
  void FileRead(service::FollowedFile, std::string_view why) override {
    ++(why.empty() ? tally_.policy_changes : tally_.bad_policies);
  }

 private:
  Tally& tally_;
};

Replica::Replica(const World& world, uint32_t index, const PolicyFile& policies, Timeline* timeline, Tally* tally)
    : world_(world),
      index_(index),
      policy_file_(policies),
      timeline_(*timeline),
      tally_(*tally),
      observer_(std::make_unique<TallyObserver>(tally)),
      entropy_(std::make_unique<SimulatedEntropy>(world.seed, index)),
      event_log_(std::make_unique<TallyLog>(tally)) {
  SORTITION_CHECK(Rise());
}

Replica::~Replica() { Die(); }

void Replica::Die() {
  if (!up_) return;
  up_ = false;
  device_->RunAll();
  engine_.reset();
}

void Replica::Follow() {
  // Each look comes after the book's pause.
  if (up_) book_->files().Follow(Timeline::Start() + absl::Seconds(2 * ++looks_));
}

bool Replica::Rise() {
  SORTITION_CHECK(!up_);
  auto book = service::PolicyBook::Start(policy_file_.path(), world_.limits, /*writes_receipts=*/false, observer_.get(),
                                         event_log_.get());
  if (!book.ok()) return false;
  book_ = *std::move(book);
  up_ = true;
  service::Engine::Options options;
  options.limits = world_.limits;
  auto device = std::make_unique<SimulatedDevice>(this);
  device_ = device.get();
  options.devices.push_back(std::move(device));
  options.clock = &timeline_;
  options.observer = observer_.get();
  options.entropy = entropy_.get();
  options.checkpoint_key = *service::CheckpointKey::Of("the secret of every replica of a world");
  options.policies = book_.get();
  engine_ = std::make_unique<service::Engine>(std::move(options));
  return true;
}

}  // namespace sortition::simulation
