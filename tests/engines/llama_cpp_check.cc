// The adapter under a real llama.cpp and a model of random weights: llama_cpp_check MODEL.gguf [TARGET].
//
// Without a target rows are sampled in this process. Prints the comparisons; exits with 1 at the first difference.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/engines/llama_cpp/llama_options.h"
#include "client/engines/llama_cpp/sampler.h"

namespace sortition::engines::llama_cpp {
namespace {

constexpr int kTokens = 40;
constexpr int kWholeText = 1000;  // a window that covers every text here

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "llama_cpp_check: %s\n", what.c_str());
  std::exit(1);
}

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

class Engine {
 public:
  explicit Engine(const char* path) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    model_.reset(llama_model_load_from_file(path, llama_model_default_params()));
    Require(model_ != nullptr, "the model cannot be loaded");
  }
  uint32_t vocabulary() const {
    return static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
  }
  // Starts a text with the prompt, and computes its logits.
  llama_context* Begin(std::vector<llama_token> prompt) {
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = 256;
    parameters.n_threads = parameters.n_threads_batch = 1;
    context_.reset(llama_init_from_model(model_.get(), parameters));
    Require(context_ != nullptr, "no context");
    Continue(prompt.data(), static_cast<int32_t>(prompt.size()));
    return context_.get();
  }
  void Continue(llama_token* tokens, int32_t count) {
    Require(llama_decode(context_.get(), llama_batch_get_one(tokens, count)) == 0, "llama_decode failed");
  }

 private:
  std::unique_ptr<llama_model, ModelDeleter> model_;
  std::unique_ptr<llama_context, ContextDeleter> context_;
};

const std::vector<llama_token> kPrompt = {5, 9, 17, 5, 3};

// Writes a text with the sampler. `direct`: without an array of candidates.
std::vector<llama_token> Write(Engine* engine, llama_sampler* sampler, bool direct) {
  llama_context* context = engine->Begin(kPrompt);
  for (llama_token token : kPrompt) llama_sampler_accept(sampler, token);
  std::vector<llama_token> text;
  for (int i = 0; i < kTokens; ++i) {
    llama_token token;
    if (direct) {
      const auto drawn = Sample(sampler, context, -1);
      Require(drawn.ok(), drawn.status().ToString());
      token = static_cast<llama_token>(drawn->token());
    } else {
      token = llama_sampler_sample(sampler, context, -1);
    }
    text.push_back(token);
    engine->Continue(&token, 1);
  }
  return text;
}

SamplerPtr Ours(client::Client* client, const SamplingOptions& sampling, uint32_t vocabulary, uint32_t top = 0) {
  const auto parameters = ToParameters(sampling);
  Require(parameters.ok(), parameters.status().ToString());
  client::SequenceOptions options;
  options.parameters = *parameters;
  options.seed = 77;
  if (top > 0) options.parameters.mutable_processed_logprobs()->set_top(top);
  return SamplerPtr(InitSampler(std::make_unique<Decoder>(client, options), vocabulary));
}

SamplerPtr Chain(const std::vector<llama_sampler*>& samplers) {
  SamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  for (llama_sampler* sampler : samplers) llama_sampler_chain_add(chain.get(), sampler);
  return chain;
}

// Makes llama.cpp's own chain with the same options, without its last sampler.
SamplerPtr Theirs(const SamplingOptions& sampling, uint32_t vocabulary) {
  std::vector<llama_sampler*> samplers = {
      llama_sampler_init_penalties(static_cast<int32_t>(vocabulary), sampling.penalty_last_n, sampling.penalty_repeat,
                                   sampling.penalty_freq, sampling.penalty_present)};
  if (sampling.temp > 0) {
    if (sampling.top_k > 0) samplers.push_back(llama_sampler_init_top_k(sampling.top_k));
    samplers.push_back(llama_sampler_init_top_p(sampling.top_p, 1));
    samplers.push_back(llama_sampler_init_min_p(sampling.min_p, 1));
    samplers.push_back(llama_sampler_init_temp(sampling.temp));
  }
  return Chain(samplers);
}

void CheckGreedy(Engine* engine, client::Client* client) {
  for (const float penalty : {1.0f, 1.3f}) {
    SamplingOptions sampling;
    sampling.temp = 0;
    sampling.penalty_repeat = penalty;
    sampling.penalty_freq = penalty == 1 ? 0 : 0.25f;
    sampling.penalty_last_n = penalty == 1 ? 0 : kWholeText;
    SamplerPtr theirs = Theirs(sampling, engine->vocabulary());
    llama_sampler_chain_add(theirs.get(), llama_sampler_init_greedy());
    const std::vector<llama_token> expected = Write(engine, theirs.get(), false);
    for (const bool direct : {false, true}) {
      const SamplerPtr ours = Ours(client, sampling, engine->vocabulary());
      Require(Write(engine, ours.get(), direct) == expected, "greedy texts differ");
    }
  }
  std::printf("greedy equal\n");
}

// Along one text, the tokens that pass the filters are the same at every step.
void CheckKept(Engine* engine, client::Client* client, const SamplingOptions& sampling, const char* name) {
  const uint32_t vocabulary = engine->vocabulary();
  const SamplerPtr ours = Ours(client, sampling, vocabulary, std::min(vocabulary, 1000u));
  const SamplerPtr theirs = Theirs(sampling, vocabulary);
  llama_context* context = engine->Begin(kPrompt);
  for (llama_token token : kPrompt) {
    llama_sampler_accept(ours.get(), token);
    llama_sampler_accept(theirs.get(), token);
  }
  for (int i = 0; i < kTokens; ++i) {
    const float* logits = llama_get_logits_ith(context, -1);
    std::vector<llama_token_data> data;
    for (uint32_t id = 0; id < vocabulary; ++id) data.push_back({static_cast<llama_token>(id), logits[id], 0});
    llama_token_data_array candidates = {data.data(), data.size(), -1, false};
    llama_sampler_apply(theirs.get(), &candidates);
    std::vector<uint32_t> expected;
    for (size_t at = 0; at < candidates.size; ++at) expected.push_back(static_cast<uint32_t>(candidates.data[at].id));

    const auto drawn = Sample(ours.get(), context, -1);
    Require(drawn.ok(), drawn.status().ToString());
    std::vector<uint32_t> kept(drawn->processed().top_tokens().begin(), drawn->processed().top_tokens().end());
    std::ranges::sort(kept);
    std::ranges::sort(expected);
    Require(kept == expected, std::string(name) + ": kept sets differ");
    llama_token token = static_cast<llama_token>(drawn->token());
    llama_sampler_accept(theirs.get(), token);
    engine->Continue(&token, 1);
  }
  std::printf("%s equal\n", name);
}

void CheckText(Engine* engine, client::Client* client) {
  SamplingOptions sampling;
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;
  sampling.temp = 1.2f;
  sampling.penalty_repeat = 1.1f;
  sampling.penalty_last_n = kWholeText;
  const SamplerPtr first = Ours(client, sampling, engine->vocabulary());
  const std::vector<llama_token> text = Write(engine, first.get(), true);
  // The text is the same through an array of candidates, in a chain, after a reset, and with a clone.
  const SamplerPtr second = Ours(client, sampling, engine->vocabulary());
  Require(Write(engine, second.get(), false) == text, "texts differ with candidates");
  llama_sampler_reset(second.get());
  Require(Write(engine, second.get(), true) == text, "texts differ after a reset");
  const SamplerPtr third = Ours(client, sampling, engine->vocabulary());
  const SamplerPtr chain = Chain({llama_sampler_clone(third.get())});
  Require(Write(engine, chain.get(), false) == text, "texts differ in a chain");
  // An earlier sampler in the chain drops candidates.
  SamplerPtr cut = Chain({llama_sampler_init_top_k(1), llama_sampler_clone(third.get())});
  SamplingOptions greedy;
  greedy.temp = 0;
  const SamplerPtr expected = Ours(client, greedy, engine->vocabulary());
  Require(Write(engine, cut.get(), false) == Write(engine, expected.get(), true),
          "candidates that were cut were drawn");
  std::printf("texts equal\n");
}

void Run(int argc, char** argv) {
  Require(argc > 1, "a model is needed");
  Engine engine(argv[1]);
  std::unique_ptr<client::Client> client;
  if (argc > 2) {
    client::ClientOptions options;
    options.targets = {argv[2]};
    auto connected = client::Client::Connect(options);
    Require(connected.ok(), connected.status().ToString());
    client = *std::move(connected);
  }
  CheckGreedy(&engine, client.get());
  CheckText(&engine, client.get());
  SamplingOptions plain;
  plain.top_k = 40;
  plain.top_p = 1;
  plain.min_p = 0;
  CheckKept(&engine, client.get(), plain, "top_k");
  plain.penalty_repeat = 1.2f;
  plain.penalty_last_n = kWholeText;
  CheckKept(&engine, client.get(), plain, "top_k and penalty");
  plain.penalty_last_n = -1;
  CheckKept(&engine, client.get(), plain, "top_k and no penalty, by a negative window");
  plain = {};
  plain.top_k = 0;
  plain.top_p = 1;
  plain.temp = 1;
  CheckKept(&engine, client.get(), plain, "min_p");
  plain.min_p = 0;
  plain.top_p = 0.9f;
  CheckKept(&engine, client.get(), plain, "top_p");
  CheckKept(&engine, client.get(), SamplingOptions{}, "the default chain");
  SamplingOptions penalties;
  penalties.penalty_repeat = 1.1f;
  CheckKept(&engine, client.get(), penalties, "the default chain with a penalty over 64 tokens");
}

}  // namespace
}  // namespace sortition::engines::llama_cpp

int main(int argc, char** argv) {
  sortition::engines::llama_cpp::Run(argc, argv);
  return 0;
}
