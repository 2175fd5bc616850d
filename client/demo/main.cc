// sortition_demo: a small language model writes several stories at once, with every token sampled through the service.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/demo/worker/author.h"
#include "client/demo/worker/page.h"
#include "client/demo/worker/server_process.h"
#include "client/demo/worker/story.h"
#include "service/receipt/receipt_key.h"
#include "sortition/client.h"
#include "sortition/in_process.h"

ABSL_FLAG(std::string, server, "", "Path of a sortitiond to start on a free loopback port, and to stop at the end");
ABSL_FLAG(std::string, devices, "cpu", "Devices that the server started here uses, as its flag of that name");
ABSL_FLAG(std::string, connect, "",
          "Address of a running sortitiond, HOST:PORT or unix:PATH. Without this and --server: in process");
ABSL_FLAG(uint32_t, sequences, 8, "Stories to write at once, 1 to 1024");
ABSL_FLAG(uint32_t, tokens, 120, "Tokens of a story, 1 to 100000");
ABSL_FLAG(uint32_t, row_width, 32768, "Elements of a row of logits, 32768 to 1048575");
ABSL_FLAG(std::string, rows, "auto", "How rows travel to a server: auto, full, compact or compact(COUNT)");
ABSL_FLAG(
    std::string, receipts, "",
    "File to write receipts to; FILE.seeds gets the opened seeds, and FILE.key the public key of a server that is "
    "started here");
ABSL_FLAG(bool, check, false, "Write everything again in process and fail unless it is the same, token by token");

namespace sortition::demo {
namespace {

constexpr char kUsage[] = R"(writes several stories at once with a small language model of its own.

  sortition_demo --server PATH       starts the server at PATH, and stops it at the end
  sortition_demo --connect ADDRESS   uses a running server
  sortition_demo                     samples in this process

Every row of logits goes to the service as bf16, and comes back as a token.)";

constexpr absl::Duration kStopTimeout = absl::Seconds(30);
constexpr uint32_t kCloseUpTokens = 14;

absl::Status CheckFlags() {
  const auto check = [](const absl::Flag<uint32_t>& flag, uint32_t low, uint32_t high) {
    const uint32_t value = absl::GetFlag(flag);
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), " must be ", low, " to ", high));
  };
  if (!absl::GetFlag(FLAGS_server).empty() && !absl::GetFlag(FLAGS_connect).empty()) {
    return absl::InvalidArgumentError("--server and --connect exclude each other");
  }
  if (!client::RowOptions::Parse(absl::GetFlag(FLAGS_rows))) {
    return absl::InvalidArgumentError("--rows must be auto, full, compact or compact(COUNT)");
  }
  if (!absl::GetFlag(FLAGS_receipts).empty() && absl::GetFlag(FLAGS_server).empty() &&
      absl::GetFlag(FLAGS_connect).empty()) {
    return absl::InvalidArgumentError("--receipts needs --server or --connect: a server makes them");
  }
  for (const absl::Status& status :
       {check(FLAGS_sequences, 1, 1024), check(FLAGS_tokens, 1, 100000), check(FLAGS_row_width, 32768, 1048575)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const std::string& address) {
  if (address.empty()) return client::Client::Connect({.in_process = client::InProcessEngine()});
  client::ClientOptions options;
  options.targets = {address};
  options.name = "sortition_demo";
  options.rows = *client::RowOptions::Parse(absl::GetFlag(FLAGS_rows));
  return client::Client::Connect(std::move(options));
}

void PrintStories(const std::vector<Story>& stories) {
  for (size_t i = 0; i < stories.size(); ++i) {
    std::string prompt = stories[i].prompt;
    if (absl::EndsWith(prompt, "\n")) prompt.pop_back();
    std::printf("%3zu | %-20s  \"%s\"  %s, seed %llu, choice %u\n", i + 1, stories[i].name.c_str(), prompt.c_str(),
                DescribeParameters(stories[i].parameters).c_str(), static_cast<unsigned long long>(stories[i].seed),
                stories[i].choice_index);
  }
}

// Prints the first story, token by token, with the alternatives of each.
absl::Status CloseUp(client::Client& client, const Learned& learned, const Story& story, WritingOptions options) {
  std::printf("\nA close look at story 1, after \"%s\":\n\n  %8s  %-14s  %8s  %4s   %s\n", story.prompt.c_str(),
              "POSITION", "TOKEN", "LOGPROB", "RANK", "LIKELIEST");
  options.tokens = std::min(options.tokens, kCloseUpTokens);
  const Page page(&learned, {});
  uint32_t position = static_cast<uint32_t>(learned.vocabulary.Encode(story.prompt).size());
  return WriteStories(client, learned, {&story, 1}, options,
                      [&](size_t, const v1::DrawResult& draw) { page.PrintChoice(position++, draw); })
      .status();
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (file.flush()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, " cannot be written"));
}

absl::Status WriteReceipts(const WritingResult& result) {
  const std::string path = absl::GetFlag(FLAGS_receipts);
  if (path.empty()) return absl::OkStatus();
  if (absl::Status status = WriteFile(path, result.receipts); !status.ok()) return status;
  std::printf("receipts        %zu bytes in %s\n", result.receipts.size(), path.c_str());
  return WriteFile(path + ".seeds", result.seeds);
}

absl::Status CheckInProcess(const Learned& learned, const std::vector<Story>& stories, const WritingOptions& options,
                            const WritingResult& result) {
  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  if (!client.ok()) return client.status();
  const auto again = WriteStories(**client, learned, stories, options, [](size_t, const v1::DrawResult&) {});
  if (!again.ok()) return again.status();
  for (size_t i = 0; i < stories.size(); ++i) {
    const auto [ours, theirs] = std::ranges::mismatch(again->tokens[i], result.tokens[i]);
    if (ours == again->tokens[i].end() && theirs == result.tokens[i].end()) continue;
    return absl::DataLossError(absl::StrCat("story ", i + 1, " differs from the one sampled in process at token ",
                                            ours - again->tokens[i].begin()));
  }
  std::printf("check           all %zu stories are the same, token by token, sampled in process\n", stories.size());
  return absl::OkStatus();
}

absl::Status Run(const std::string& address, const std::string& where) {
  const Learned learned = LearnFromCorpus();
  WritingOptions options;
  options.tokens = absl::GetFlag(FLAGS_tokens);
  options.row_width = absl::GetFlag(FLAGS_row_width);
  options.receipts = !absl::GetFlag(FLAGS_receipts).empty();
  std::printf("model           5-gram, learned from %.0f KB of text; %u of %u ids are live\n",
              static_cast<double>(learned.corpus_bytes) / 1000, learned.model.live_vocabulary(), options.row_width);
  std::printf("sampled         %s\n\n", where.c_str());
  const auto client = Connect(address);
  if (!client.ok()) return client.status();

  const std::vector<Story> stories = MakeStories(absl::GetFlag(FLAGS_sequences), learned.vocabulary);
  PrintStories(stories);
  if (absl::Status status = CloseUp(**client, learned, stories[0], options); !status.ok()) return status;

  std::printf("\nAll stories at once:\n\n");
  Page page(&learned, stories);
  const auto result = WriteStories(**client, learned, stories, options,
                                   [&](size_t story, const v1::DrawResult& draw) { page.Add(story, draw.token()); });
  page.Finish();
  if (!result.ok()) return result.status();
  std::printf("\n");
  PrintSummary(*result);
  if (absl::Status status = WriteReceipts(*result); !status.ok()) return status;
  options.receipts = false;
  return absl::GetFlag(FLAGS_check) ? CheckInProcess(learned, stories, options, *result) : absl::OkStatus();
}

// A key for one run, in a file beside the receipts.
class RunKey {
 public:
  explicit RunKey(const std::string& receipts) : path_(receipts + ".private") {}
  ~RunKey() { std::remove(path_.c_str()); }
  RunKey(const RunKey&) = delete;
  RunKey& operator=(const RunKey&) = delete;

  const std::string& path() const { return path_; }
  // Returns the public key in hexadecimal digits.
  absl::StatusOr<std::string> Write() const { return service::WriteNewKey(path_); }

 private:
  const std::string path_;
};

absl::Status RunWithServer(const std::string& program) {
  std::vector<std::string> flags = {"--log_level=warning", "--devices=" + absl::GetFlag(FLAGS_devices)};
  std::optional<RunKey> key;
  if (const std::string path = absl::GetFlag(FLAGS_receipts); !path.empty()) {
    const auto public_key = key.emplace(path).Write();
    if (!public_key.ok()) return public_key.status();
    if (absl::Status status = WriteFile(path + ".key", *public_key + "\n"); !status.ok()) return status;
    flags.push_back("--receipt_key=" + key->path());
  }
  const auto server = ServerProcess::Start(program, flags, /*log_file=*/"");
  if (!server.ok()) return server.status();
  const absl::Status status =
      Run((*server)->address(), absl::StrCat("by a server of our own at ", (*server)->address()));
  if (!status.ok()) return status;
  return (*server)->Stop(kStopTimeout);
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) { return absl::StrContains(file, "client/demo/"); };
  absl::SetFlagsUsageConfig(config);
  const bool stray = absl::ParseCommandLine(argc, argv).size() > 1;
  absl::Status status = stray ? absl::InvalidArgumentError("only flags are understood; see --help") : CheckFlags();
  if (status.ok()) {
    const std::string address = absl::GetFlag(FLAGS_connect);
    if (const std::string program = absl::GetFlag(FLAGS_server); !program.empty()) {
      status = RunWithServer(program);
    } else {
      status = Run(address, address.empty() ? "in this process" : absl::StrCat("by the server at ", address));
    }
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "sortition_demo: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace sortition::demo

int main(int argc, char** argv) { return sortition::demo::Main(argc, argv); }
