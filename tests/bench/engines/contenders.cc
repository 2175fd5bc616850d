// Contenders in C++, in a separate process, for bench_engines.py:
//
//   engines_contenders LOGITS VOCABULARY ROWS TARGET
//
// LOGITS is a file of ROWS rows of f32. For each line "NAME INDEX" of standard input the contender NAME draws its next
// token from row INDEX, and the microseconds that it took are printed. A contender of several texts takes a row for
// each, from INDEX on.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/engines/llama_cpp/decoder.h"
#include "llama.h"
#include "sortition/client.h"
#include "sortition/local_sequence.h"

namespace sortition::bench {
namespace {

// Parameters of all contenders: repetition penalty 1.1, top-k 40, top-p 0.95, min-p 0.05, temperature 0.8, in
// llama.cpp's order.
v1::SamplingParameters Parameters() {
  v1::SamplingParameters parameters;
  parameters.set_repetition_penalty(1.1f);
  parameters.set_top_k(40);
  parameters.set_top_p(0.95f);
  parameters.set_min_p(0.05f);
  parameters.set_temperature(0.8f);
  parameters.mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
  return parameters;
}

class Contender {
 public:
  virtual ~Contender() = default;
  // Not timed.
  virtual void Prepare(const float*) {}
  // False if it failed.
  virtual bool Step(const float* rows) = 0;
};

class Local : public Contender {
 public:
  Local(uint32_t vocabulary, uint64_t seed) {
    client::SequenceOptions options;
    options.request_id = "local";
    options.parameters = Parameters();
    options.vocabulary_size = vocabulary;
    options.seed = seed;
    sequence_ = *client::LocalSequence::Open(options);
  }
  bool Step(const float* row) override {
    return std::holds_alternative<v1::DrawResult>(sequence_->Step(v1::DTYPE_F32, client::Row{nullptr, row}));
  }

 private:
  std::unique_ptr<client::LocalSequence> sequence_;
};

class Remote : public Contender {
 public:
  Remote(const char* target, uint32_t vocabulary, uint32_t rows) : vocabulary_(vocabulary) {
    client::ClientOptions options;
    options.targets = {target};
    options.rows.form = client::RowFormOptions::Form::kFull;
    client_ = *client::Client::Connect(options);
    for (uint32_t row = 0; row < rows; ++row) {
      client::SequenceOptions sequence;
      sequence.request_id = std::to_string(row);
      sequence.parameters = Parameters();
      sequence.vocabulary_size = vocabulary;
      sequence.seed = row;
      sequences_.push_back(*client_->Open(std::move(sequence)));
      pointers_.push_back(sequences_.back().get());
    }
    memory_ = client_->AllocateRows(uint64_t{rows} * vocabulary * sizeof(float))->data;
  }
  void Prepare(const float* rows) override {
    std::memcpy(memory_.get(), rows, pointers_.size() * vocabulary_ * sizeof(float));
  }
  bool Step(const float*) override {
    const auto outcomes =
        client_->Step(client::Batch::FromMatrix(v1::DTYPE_F32, vocabulary_, memory_.get(), 0, pointers_));
    if (!outcomes.ok()) return false;
    for (const client::RowResult& outcome : *outcomes) {
      if (!std::holds_alternative<v1::DrawResult>(outcome)) return false;
    }
    return true;
  }

 private:
  const uint32_t vocabulary_;
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  std::vector<client::Sequence*> pointers_;
  std::shared_ptr<std::byte> memory_;
};

// The adapter, as an engine in C++ asks it for a token.
class Adapter : public Contender {
 public:
  Adapter(uint32_t vocabulary, uint64_t seed) : vocabulary_(vocabulary) {
    client::SequenceOptions options;
    options.parameters = Parameters();
    options.seed = seed;
    decoder_ = std::make_unique<engines::llama_cpp::Decoder>(nullptr, options);
  }
  bool Step(const float* row) override {
    const auto drawn = decoder_->Draw(row, vocabulary_);
    return drawn.ok() && decoder_->Accept(drawn->token()).ok();
  }

 private:
  const uint32_t vocabulary_;
  std::unique_ptr<engines::llama_cpp::Decoder> decoder_;
};

// llama.cpp's own chain of filters and a draw, with the copy into candidates that llama_sampler_sample makes.
class Llama : public Contender {
 public:
  Llama(uint32_t vocabulary, std::initializer_list<llama_sampler*> filters)
      : candidates_(vocabulary), chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())) {
    for (llama_sampler* sampler : filters) llama_sampler_chain_add(chain_, sampler);
    llama_sampler_chain_add(chain_, llama_sampler_init_dist(7));
  }
  ~Llama() override { llama_sampler_free(chain_); }
  bool Step(const float* row) override {
    const llama_token vocabulary = static_cast<llama_token>(candidates_.size());
    for (llama_token id = 0; id < vocabulary; ++id) candidates_[static_cast<size_t>(id)] = {id, row[id], 0};
    llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
    llama_sampler_apply(chain_, &array);
    if (array.selected < 0) return false;
    llama_sampler_accept(chain_, array.data[array.selected].id);
    return true;
  }

 private:
  std::vector<llama_token_data> candidates_;
  llama_sampler* const chain_;
};

// Returns a new contender, null for an unknown name. `target`: of the service.
std::unique_ptr<Contender> Make(const std::string& name, uint32_t vocabulary, const char* target) {
  if (name == "local") return std::make_unique<Local>(vocabulary, 7);
  if (name == "adapter") return std::make_unique<Adapter>(vocabulary, 7);
  if (name == "remote") return std::make_unique<Remote>(target, vocabulary, 1);
  if (name == "remote8") return std::make_unique<Remote>(target, vocabulary, 8);
  const auto of_chain = [&](auto... filters) {
    return std::make_unique<Llama>(vocabulary, std::initializer_list<llama_sampler*>{filters...});
  };
  if (name == "llama_plain") return of_chain();
  if (name == "llama_top_p") return of_chain(llama_sampler_init_temp(0.8f), llama_sampler_init_top_p(0.95f, 1));
  if (name != "llama") return nullptr;
  return of_chain(llama_sampler_init_penalties(static_cast<int32_t>(vocabulary), 64, 1.1f, 0, 0),
                  llama_sampler_init_top_k(40), llama_sampler_init_top_p(0.95f, 1), llama_sampler_init_min_p(0.05f, 1),
                  llama_sampler_init_temp(0.8f));
}

int Run(char** argv) {
  const uint32_t vocabulary = static_cast<uint32_t>(std::stoul(argv[2]));
  std::vector<float> logits(std::stoull(argv[3]) * vocabulary);
  std::ifstream(argv[1], std::ios::binary)
      .read(reinterpret_cast<char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(float)));

  std::map<std::string, std::unique_ptr<Contender>> contenders;
  std::string name;
  size_t index = 0;
  while (std::cin >> name >> index) {
    std::unique_ptr<Contender>& known = contenders[name];
    if (known == nullptr) known = Make(name, vocabulary, argv[4]);
    if (known == nullptr) return 1;
    Contender& contender = *known;
    const float* rows = logits.data() + index * vocabulary;
    contender.Prepare(rows);
    const auto start = std::chrono::steady_clock::now();
    if (!contender.Step(rows)) return 1;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    std::cout << took.count() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) { return argc == 5 ? sortition::bench::Run(argv) : 2; }
