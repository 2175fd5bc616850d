// A worker, or one of its ranks: the client's real state machine in a process that can die, and the texts that its
// callers want.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cpp/stream_state.h"
#include "tests/simulation/job.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/world.h"

namespace sortition::simulation {

// Not thread-safe. Nothing given to it is owned; all of it outlives the worker.
class Worker {
 public:
  using Fail = std::function<void(std::string why)>;

  // The world's rank `index`. `fail` is called with every difference from the run without faults.
  Worker(const World& world, uint32_t index, const PolicyFile& policies, Timeline* timeline, Network* network,
         Tally* tally, Log log, Fail fail);
  ~Worker();

  // Adds another rank of the same worker. Not owned; not used after the timeline's last event.
  void AddPeer(Worker* peer) { peers_.push_back(peer); }
  void Start();
  // True once every text is complete.
  bool Done() const;

  // The process dies and a new one takes over its texts. The former one is gone at once, or lives on for `zombie`. A
  // process cannot be replaced within the microsecond of its start, because epochs begin at the clock's microseconds.
  // The answers of a dying rank, which the others may still need, are lost with it. So it continues its texts from
  // answers that all ranks have. If ranks do not wait for each other, a rank that is ahead lives on.
  void Restart(absl::Duration zombie);

  // Called when a server has fallen silent. Later steps that pass their deadlines are sent again.
  void MayMissDeadlines() { may_miss_deadlines_ = true; }

 private:
  void StartProcess(uint64_t generation);
  Job* FindJob(uint32_t number) const;
  bool IsFree(const Job& job) const;
  bool IsAhead(const Job& job) const;
  bool GoBackToPeers();
  void PlanThought();
  void Think();
  void Open(Job* job);
  void Submit(std::vector<Job*> jobs, uint64_t batch);
  void OnOpened(Job* job, uint64_t generation, const absl::Status& status);
  void OnOutcome(Job* job, uint64_t generation, uint32_t step, bool hurried, const client::RowResult& outcome);
  void BeginText(Job* job);
  void Count(const TextStep& step, const client::RowResult& outcome);
  bool EndsByPolicy(const Job& job, std::string_view why) const;
  void EndJob(Job* job);
  void FinishJob(Job* job);
  void CloseJob(const Job& job);
  std::string NameOf(const Job& job) const;

  const World& world_;
  const uint32_t index_;
  const Rank rank_;
  const client::ClientOptions options_;
  const PolicyFile& policies_;
  std::vector<Worker*> peers_;
  Timeline& timeline_;
  Network& network_;
  Tally& tally_;
  const Log log_;
  const Fail fail_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::shared_ptr<Process> process_;
  absl::Time process_started_;
  std::vector<std::shared_ptr<Process>> zombies_;
  uint64_t thoughts_ = 0;
  bool thinking_ = false;  // the end of the next thought is planned
  bool may_miss_deadlines_ = false;
};

}  // namespace sortition::simulation
