// One unary Sample call: its rows go to the batcher as one step, and their results into one response.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "service/engine.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

class SampleRun {
 public:
  using Answer = std::variant<v1::SampleResponse, Refusal>;
  using Done = std::function<void(Answer)>;

  // `engine` is not owned and outlives the run. `tenant` is the caller's identity. `bytes`: its encoded size.
  SampleRun(Engine* engine, std::string tenant, std::shared_ptr<const v1::SampleRequest> request, uint64_t bytes);
  // Cancels rows that have not started. `done` may still be called.
  ~SampleRun();
  SampleRun(const SampleRun&) = delete;
  SampleRun& operator=(const SampleRun&) = delete;

  // Starts the rows, which fail with DEADLINE_PASSED if they have not started after `timeout`. Does not block. Calls
  // `done` once, from this thread or from a device's; `done` must not block and must not destroy the run. A refusal
  // concerns the whole call; a row that fails alone has its error in the response. Once.
  //
  // Reads the rows' options in pieces: while has_pieces(), the caller serves others and calls Continue on this thread.
  void Start(absl::Duration timeout, Done done);
  bool has_pieces() const;
  void Continue();

 private:
  class Rows;

  const std::shared_ptr<Rows> rows_;
};

}  // namespace sortition::service
