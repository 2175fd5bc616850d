// Threads for work in pieces. Callers that wait for work take part in it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace sortition::client {

// At most `threads` threads work at a time, callers' included. The pool's own threads begin when they are first needed.
// Thread-safe.
class WorkPool {
 public:
  class Job {
   public:
    // `owner` and `id` name the job for Remove.
    Job(const void* owner, uint64_t id) : owner_(owner), id_(id) {}
    virtual ~Job() = default;
    // Runs one of the job's pieces, without locks of the pool. Distinct pieces run on distinct threads at once.
    virtual void Run(uint32_t piece) = 0;

   private:
    friend class WorkPool;
    const void* const owner_;
    const uint64_t id_;
  };

  // 0 threads: one for each hardware thread.
  explicit WorkPool(uint32_t threads);
  ~WorkPool() { Stop(); }
  // Runs the remaining pieces, waits for all, and ends the threads. Nothing may be added afterwards.
  void Stop();

  // Adds a job of at least one piece, behind jobs of the same or a higher priority. Starts nothing.
  void Add(std::shared_ptr<Job> job, uint32_t pieces, int32_t priority);
  // Removes the pieces that have not begun: of the owner's job `id`, or of all its jobs.
  void Remove(const void* owner, std::optional<uint64_t> id);
  // Wakes one thread for each piece of work, while sleeping threads are left. Does not block.
  void Start();
  // Works on the calling thread until `done` is true or nothing is left to begin. Other threads help if there is more
  // than one piece. `done` is called without locks.
  void Help(absl::FunctionRef<bool()> done);

 private:
  struct Entry {
    std::shared_ptr<Job> job;
    uint32_t next = 0;
    uint32_t pieces = 0;
    int32_t priority = 0;
  };

  void Invite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work(absl::FunctionRef<bool()> done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const uint32_t most_busy_;
  absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);  // jobs with pieces that have not begun
  uint64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;     // pieces of `queue_`
  uint32_t busy_ ABSL_GUARDED_BY(mutex_) = 0;        // threads that work
  uint32_t invited_ ABSL_GUARDED_BY(mutex_) = 0;     // threads of the pool that are to begin
  uint32_t idle_ ABSL_GUARDED_BY(mutex_) = 0;        // threads of the pool that sleep
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar invitation_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::client
