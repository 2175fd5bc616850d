// Sends a scenario's messages in order, each after the answers to the one before it.
#pragma once

#include <optional>
#include <vector>

#include "service/engine.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/costs/messages.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

class Script {
 public:
  virtual ~Script() = default;

 protected:
  // Sends what comes before the scenario's last message, and returns that. None if Send says that the scenario is over.
  // The scenario has a stream: it is no unary call.
  std::optional<Request> Prepare(const Scenario& scenario, service::Engine* engine, Messages* messages);

  // Sends a message and takes its answers to answers_. Returns false if the scenario is over. `holds`: the message
  // waits for another.
  virtual bool Send(const Request& message, bool holds) = 0;

  std::vector<v1::StreamResponse> answers_;

 private:
  // Opens one sequence for each row.
  bool OpenAll(const Scenario& scenario, Messages* messages);
  // Sends the shards but one; a cancel follows the first.
  // One message that answers many shards, or a step whose answers are all kept.
  std::optional<Request> PrepareBrought(const Scenario& scenario, const Messages& messages);
  std::optional<Request> PrepareLastShard(const Scenario& scenario, Messages* messages);
  std::optional<Request> PrepareLastPiece(const Messages& messages);
};

// Returns the errors in an answer.
std::vector<const v1::Error*> ErrorsOf(const v1::StreamResponse& answer);

}  // namespace sortition::costs
