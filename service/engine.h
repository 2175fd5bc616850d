// The engine: everything behind the streams, such as sequences, batches and devices. A server has one; each in-process
// client has another.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/device.h"
#include "service/aside_threads.h"
#include "service/batch/batcher.h"
#include "service/batch/unready_steps.h"
#include "service/client_accounts.h"
#include "service/clock.h"
#include "service/entropy.h"
#include "service/event_log.h"
#include "service/ledger.h"
#include "service/limits.h"
#include "service/memory/mask_memory.h"
#include "service/memory/region_table.h"
#include "service/observer.h"
#include "service/sequence/sequence_table.h"
#include "service/text/checkpoint.h"

namespace sortition::service {

class PolicyBook;
class ReceiptBook;
class ShardTable;

// A requested device that is absent or did not start. Listed for people; it gets no rows.
struct MissingDevice {
  std::string name;      // as requested; for hardware that did not start, its name as a device
  std::string kind;      // as in DeviceDescription
  std::string hardware;  // empty if the machine has none
  std::string reason;
};

// Thread-safe. Outlives the sessions that use it. Destruction blocks until the devices have finished their batches.
class Engine {
 public:
  struct Options {
    Limits limits;
    std::vector<std::unique_ptr<devices::Device>> devices;  // at least one
    const Clock* clock = nullptr;                           // not owned, outlives the engine
    Observer* observer = nullptr;                           // not owned, outlives the engine
    EventLog* event_log = nullptr;                          // not owned, outlives the engine; null = no log
    Entropy* entropy = nullptr;                             // not owned, outlives the engine; null = the system's
    std::optional<CheckpointKey> checkpoint_key = {};       // absent = a random key, for this engine alone
    // The event log gets steps that take this long, or that find an answer unread for this long.
    absl::Duration slow_step = absl::InfiniteDuration();
    RoutePolicy route = {};
    double recheck_share = 0;  // share of live rows that are compared with the reference
    const devices::SelfTest* self_test =
        nullptr;  // not owned, outlives the engine; null = devices are never quarantined
    std::vector<MissingDevice> missing_devices = {};
    ReceiptBook* receipts = nullptr;  // not owned, outlives the engine; null = no sequence has receipts
    PolicyBook* policies = nullptr;   // not owned, outlives the engine; null = no tenant has a policy
  };

  explicit Engine(Options options);
  ~Engine();

  const Limits& limits() const { return limits_; }
  const Clock& clock() const { return clock_; }
  Observer& observer() { return observer_; }
  Entropy& entropy() { return entropy_; }
  EventLog& event_log() { return event_log_; }
  absl::Duration slow_step() const { return slow_step_; }
  ClientAccounts& clients() { return clients_; }
  SequenceTable& sequences() { return sequences_; }
  Ledger& ledger() { return ledger_; }
  // Charges the work of a client's message, by the price list, to the client and to the server.
  void Spend(ClientAccount* account, uint64_t work) {
    ledger_.Add(work);
    account->Spend(work);
  }
  RegionTable& regions() { return regions_; }
  MaskMemory& masks() { return masks_; }
  const CheckpointKey& checkpoint_key() const { return checkpoint_key_; }
  ShardTable& shards() { return *shards_; }
  ReceiptBook* receipts() const { return receipts_; }
  const PolicyBook* policies() const { return policies_; }
  // Expires shards, sequences and rows that have waited too long, and follows the policies' files. Called every few
  // milliseconds.
  void Sweep();
  Batcher& batcher() { return batcher_; }
  UnreadySteps& unready_steps() { return unready_steps_; }
  const std::vector<std::unique_ptr<devices::Device>>& devices() const { return devices_; }
  const std::vector<MissingDevice>& missing_devices() const { return missing_devices_; }

 private:
  const Limits limits_;
  const Clock& clock_;
  Observer& observer_;
  SystemEntropy system_entropy_;
  Entropy& entropy_;
  EventLog& event_log_;
  const absl::Duration slow_step_;
  const std::vector<std::unique_ptr<devices::Device>> devices_;
  const std::vector<MissingDevice> missing_devices_;
  ClientAccounts clients_;
  SequenceTable sequences_;
  Ledger ledger_;
  RegionTable regions_;
  MaskMemory masks_;
  const CheckpointKey checkpoint_key_;
  ReceiptBook* const receipts_;
  PolicyBook* const policies_;
  const std::unique_ptr<ShardTable> shards_;
  std::unique_ptr<AsideThreads> aside_threads_;  // null if no work runs on them
  Batcher batcher_;
  UnreadySteps unready_steps_;
};

}  // namespace sortition::service
