// A minimal worker: steps two sequences ten times and prints their tokens (docs/client.md explains it). With
// "--rank INDEX/COUNT SESSION TARGET" it is one of several tensor-parallel ranks, and prints the same.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "sortition/client.h"
#include "sortition/in_process.h"

namespace client = sortition::client;
namespace v1 = sortition::v1;

namespace {

constexpr uint32_t kVocabulary = 32000;

// Stands for the model: computes the row of logits after `position` tokens.
void ComputeLogits(uint32_t position, std::vector<float>* row) {
  for (uint32_t i = 0; i < kVocabulary; ++i) (*row)[i] = static_cast<float>(i * (position + 7) % 1009) / 100;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "example_worker: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  client::ClientOptions options;
  client::VocabularyShard shard{0, 1, 0, kVocabulary, kVocabulary};  // the whole row
  if (argc == 5 && std::string_view(argv[1]) == "--rank") {
    if (std::sscanf(argv[2], "%u/%u", &shard.index, &shard.count) != 2 || shard.count == 0) return 2;
    shard.first_token = kVocabulary / shard.count * shard.index;
    shard.tokens = kVocabulary / shard.count;
    options.shard = shard;
    options.worker_session = argv[3];
    options.targets = {argv[4]};  // where all ranks meet
  } else {
    options.targets.assign(argv + 1, argv + argc);   // tried in turn
    options.in_process = client::InProcessEngine();  // if none can be reached: the same tokens, sampled here
  }
  auto connected = client::Client::Connect(options);
  if (!connected.ok()) return Fail(connected.status());
  client::Client& sampler = **connected;

  std::vector<std::unique_ptr<client::Sequence>> sequences;
  for (const char* id : {"request-1", "request-2"}) {
    client::SequenceOptions sequence;
    sequence.request_id = id;
    sequence.vocabulary_size = kVocabulary;
    sequence.seed = 42 + sequences.size();
    sequence.prompt = {1, 15043, 3186};
    sequence.parameters.set_temperature(0.8f);
    sequence.parameters.set_top_p(0.95f);
    sequence.parameters.set_repetition_penalty(1.1f);
    auto opened = sampler.Open(sequence);
    if (!opened.ok()) return Fail(opened.status());
    sequences.push_back(*std::move(opened));
  }

  std::vector<std::vector<float>> rows(sequences.size(), std::vector<float>(kVocabulary));
  for (int step = 0; step < 10; ++step) {
    client::Batch batch{v1::DTYPE_F32, shard.tokens, {}};
    for (size_t i = 0; i < sequences.size(); ++i) {
      ComputeLogits(sequences[i]->position(), &rows[i]);
      batch.rows.push_back({sequences[i].get(), rows[i].data() + shard.first_token});
    }
    const auto results = sampler.Step(batch);
    if (!results.ok()) return Fail(results.status());
    for (const client::RowResult& result : *results) {
      if (const auto* error = std::get_if<client::RowError>(&result)) return Fail(client::ToStatus(*error));
      std::printf("%u ", std::get<v1::DrawResult>(result).token());
    }
    std::printf("\n");
  }
  return 0;
}
