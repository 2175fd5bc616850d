// A worker without a server: a client that samples in this process, and a sequence without a client.
#include <sortition/client.h>
#include <sortition/in_process.h>
#include <sortition/local_sequence.h>

#include <iostream>
#include <vector>

namespace client = sortition::client;

int main() {
  auto connected = client::Client::Connect({.targets = {"in_process"}, .in_process = client::InProcessEngine(1)});
  if (!connected.ok()) return 1;
  client::SequenceOptions options;
  options.request_id = "outside";
  options.vocabulary_size = 4;
  options.seed = 7;
  const auto opened = (*connected)->Open(options);
  auto local = client::LocalSequence::Open(options);
  if (!opened.ok() || !local.ok()) return 2;
  const std::vector<float> logits = {1, 2, 3, 4};
  const auto results = (*connected)->Step({sortition::v1::DTYPE_F32, 4, {{opened->get(), logits.data()}}});
  if (!results.ok()) return 3;
  const auto again = (*local)->Step(sortition::v1::DTYPE_F32, {nullptr, logits.data()});
  std::cout << "tokens " << std::get<sortition::v1::DrawResult>(results->front()).token() << " "
            << std::get<sortition::v1::DrawResult>(again).token() << "\n";
  return 0;
}
