// sortition_demo: a small language model writes texts side by side, with every token drawn by a server that is killed
// on the way. Then it writes them again in other ways, and compares tokens and the bits of their logprobs.
#include <bit>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/demo/language_model.h"
#include "client/process/server_process.h"
#include "sortition/client.h"
#include "sortition/in_process.h"

ABSL_FLAG(std::string, connect, "",
          "Address of a running sortitiond, HOST:PORT or unix:PATH, that is left running. Empty: one of our own, which "
          "lies beside this program");

namespace sortition::demo {
namespace {

using process::ServerProcess;

constexpr uint32_t kTokens = 40;  // of a text, at most
constexpr uint64_t kSeed = 2024;
constexpr absl::Duration kStopTimeout = absl::Seconds(30);

struct Text {
  std::string name;
  std::string prompt;
  v1::SamplingParameters parameters = {};
};

std::vector<Text> MakeTexts(const LanguageModel& model) {
  std::vector<Text> texts = {{"greedy", "The old woman"},
                             {"temperature 0.8", "The cat"},
                             {"top-p 0.9", "Once, in a village"},
                             {"penalties, no goat", "The king"}};
  texts[0].parameters.set_temperature(0);
  texts[1].parameters.set_temperature(0.8f);
  texts[2].parameters.set_top_p(0.9f);
  texts[3].parameters.set_min_p(0.02f);
  texts[3].parameters.set_repetition_penalty(1.1f);
  texts[3].parameters.set_frequency_penalty(0.2f);
  texts[3].parameters.add_banned_token_ids(model.Encode(" goat")[0]);
  for (Text& text : texts) text.parameters.mutable_raw_logprobs();
  return texts;
}

// A token, and the bits of its logprob.
using Drawn = std::pair<uint32_t, uint32_t>;
// Tokens by text.
using Results = std::vector<std::vector<Drawn>>;
using AfterStep = std::function<absl::Status(uint32_t step, const Results& results)>;

absl::StatusOr<std::unique_ptr<ServerProcess>> StartServer(const std::string& devices, const std::string& log_file = "",
                                                           int port = 0) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return ServerProcess::Start(folder / "sortitiond", {"--log_level=warning", "--devices=" + devices}, log_file, port);
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const std::string& address, client::RowFormOptions rows = {}) {
  client::ClientOptions options;
  options.targets = {address};
  options.name = "sortition_demo";
  options.rows = rows;
  return client::Client::Connect(std::move(options));
}

class Demo {
 public:
  // Uses the server at `address`, or starts and stops its own ones if that is empty.
  absl::Status Run(std::string address);

 private:
  // Draws the texts side by side, with one batch a step, and calls `after_step` after each. Returns the first error of
  // a sequence, a row or `after_step`.
  absl::StatusOr<Results> Write(client::Client& client, const AfterStep& after_step) const;
  // Draws the texts again. Returns an error if a token or a logprob differs from the first time.
  absl::Status Again(const char* how, const absl::StatusOr<std::unique_ptr<client::Client>>& client) const;
  // Prints the tokens that a step has drawn, each with its logprob.
  void PrintStep(uint32_t step, const Results& results) const;
  void PrintTexts() const;

  const LanguageModel model_{Tales()};
  const std::vector<Text> texts_ = MakeTexts(model_);
  Results first_;
};

absl::StatusOr<Results> Demo::Write(client::Client& client, const AfterStep& after_step) const {
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  std::vector<std::vector<uint32_t>> contexts;  // prompts and outputs
  for (const Text& text : texts_) {
    contexts.push_back(model_.Encode(text.prompt));
    client::SequenceOptions options;
    options.request_id = text.name;
    options.parameters = text.parameters;
    options.seed = kSeed;
    options.vocabulary_size = model_.size();
    options.prompt = contexts.back();
    auto opened = client.Open(std::move(options));
    if (!opened.ok()) return opened.status();
    sequences.push_back(*std::move(opened));
  }
  Results results(texts_.size());
  for (uint32_t step = 0; step < kTokens; ++step) {
    client::Batch batch{v1::DTYPE_F32, model_.size(), {}};
    std::vector<std::vector<float>> logits;
    std::vector<size_t> text_of;  // by row
    for (size_t text = 0; text < texts_.size(); ++text) {
      if (contexts[text].back() == LanguageModel::kEnd) continue;
      logits.push_back(model_.Logits(contexts[text]));
      batch.rows.push_back({sequences[text].get(), logits.back().data()});
      text_of.push_back(text);
    }
    if (batch.rows.empty()) break;
    const auto answers = client.Step(batch);
    if (!answers.ok()) return answers.status();
    for (size_t row = 0; row < text_of.size(); ++row) {
      const client::RowResult& answer = (*answers)[row];
      if (const auto* error = std::get_if<client::RowError>(&answer)) return client::ToStatus(*error);
      const auto& draw = std::get<v1::DrawResult>(answer);
      results[text_of[row]].push_back({draw.token(), std::bit_cast<uint32_t>(draw.raw().logprob())});
      contexts[text_of[row]].push_back(draw.token());
    }
    if (absl::Status status = after_step(step, results); !status.ok()) return status;
  }
  return results;
}

absl::Status Demo::Again(const char* how, const absl::StatusOr<std::unique_ptr<client::Client>>& client) const {
  if (!client.ok()) return client.status();
  const auto results = Write(**client, [](uint32_t, const Results&) { return absl::OkStatus(); });
  if (!results.ok()) return results.status();
  for (size_t text = 0; text < first_.size(); ++text) {
    if ((*results)[text] == first_[text]) continue;
    return absl::DataLossError(absl::StrCat("the text \"", texts_[text].name, "\" differs ", how));
  }
  std::printf("  %-38s the same\n", how);
  return absl::OkStatus();
}

void Demo::PrintStep(uint32_t step, const Results& results) const {
  std::printf("%4u", step);
  for (const std::vector<Drawn>& drawn : results) {
    if (drawn.size() <= step) {
      std::printf("%24s", "");
      continue;
    }
    const auto [token, logprob] = drawn[step];
    const std::string word = absl::StrReplaceAll(model_.word(token), {{"\n", "\\n"}});
    std::printf("  %-14s%8.3f", token == LanguageModel::kEnd ? "[the end]" : absl::StrCat("\"", word, "\"").c_str(),
                std::bit_cast<float>(logprob));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void Demo::PrintTexts() const {
  for (size_t text = 0; text < texts_.size(); ++text) {
    std::string written = texts_[text].prompt;
    for (const auto& [token, logprob] : first_[text]) absl::StrAppend(&written, model_.word(token));
    std::printf("\n%s: %s\n", texts_[text].name.c_str(), absl::StrReplaceAll(written, {{"\n", "\n    "}}).c_str());
  }
}

absl::Status Demo::Run(std::string address) {
  std::unique_ptr<ServerProcess> server;
  const auto start = [&](int port) {
    auto started = StartServer("cpu", "", port);
    if (started.ok()) server = *std::move(started);
    return started.status();
  };
  if (address.empty()) {
    if (absl::Status status = start(0); !status.ok()) return status;
    address = server->address();
  }
  auto client = Connect(address);
  if (!client.ok()) return client.status();
  std::printf("%u words; tokens and logprobs, drawn by the server at %s:\n\n    ", model_.size(), address.c_str());
  for (const Text& text : texts_) std::printf("  %-22s", text.name.c_str());
  std::printf("\n");
  auto results = Write(**client, [&](uint32_t step, const Results& drawn) {
    PrintStep(step, drawn);
    if (server == nullptr || step + 1 != kTokens / 2) return absl::OkStatus();
    std::printf("      The server is killed. Another one, which knows none of these texts, takes its place.\n");
    const int port = server->port();
    server.reset();
    return start(port);
  });
  if (!results.ok()) return results.status();
  client->reset();
  first_ = *std::move(results);
  PrintTexts();

  std::printf("\nDrawn again, and compared by tokens and the bits of logprobs:\n");
  absl::Status status =
      Again("without a server, in this process", client::Client::Connect({.in_process = client::InProcessEngine()}));
  if (!status.ok()) return status;
  status =
      Again("from the first 64 tokens of each row", Connect(address, {client::RowFormOptions::Form::kCompact, 64}));
  if (!status.ok() || server == nullptr) return status;
  if (status = server->Stop(kStopTimeout); !status.ok()) return status;
  for (const char* devices : {"cuda", "vulkan"}) {
    const std::string how = absl::StrCat("by a server with --devices=", devices);
    const auto started = StartServer(devices, "/dev/null");
    if (absl::IsUnavailable(started.status())) {
      std::printf("  %-38s there is none here\n", how.c_str());
      continue;
    }
    status = started.ok() ? Again(how.c_str(), Connect((*started)->address())) : started.status();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sortition::demo

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("writes four texts with a small language model, whose tokens a server draws.");
  const bool stray = absl::ParseCommandLine(argc, argv).size() > 1;
  const absl::Status status = stray ? absl::InvalidArgumentError("only flags are understood; see --help")
                                    : sortition::demo::Demo().Run(absl::GetFlag(FLAGS_connect));
  if (status.ok()) return 0;
  std::fprintf(stderr, "sortition_demo: %s\n", status.ToString().c_str());
  return 1;
}
