// A worker that links the client alone: it opens a sequence and draws a token at the address that it is given.
#include <sortition/client.h>

#include <iostream>
#include <vector>

namespace client = sortition::client;

int main(int argc, char** argv) {
  client::ClientOptions options;
  options.targets.assign(argv + 1, argv + argc);
  auto connected = client::Client::Connect(options);
  if (!connected.ok()) {
    std::cout << connected.status().message() << "\n";
    return 1;
  }
  client::SequenceOptions sequence;
  sequence.request_id = "outside";
  sequence.vocabulary_size = 4;
  sequence.seed = 7;
  const auto opened = (*connected)->Open(sequence);
  if (!opened.ok()) return 2;
  const std::vector<float> logits = {1, 2, 3, 4};
  const auto results = (*connected)->Step({sortition::v1::DTYPE_F32, 4, {{opened->get(), logits.data()}}});
  if (!results.ok()) return 3;
  const auto* const draw = std::get_if<sortition::v1::DrawResult>(&results->front());
  if (draw == nullptr) return 4;
  std::cout << "token " << draw->token() << "\n";
  return 0;
}
