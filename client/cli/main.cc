// sortitionctl: describes, watches and administers a server, and samples one token from a row in a file.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "client/cli/command.h"
#include "service/version.h"

namespace sortition::cli {
namespace {

constexpr char kUsage[] = R"(talks to a sortitiond.

  sortitionctl info            versions, devices, every limit, every parameter
  sortitionctl devices         each device: its state with the reason, and the cost of a batch; missing ones, too
  sortitionctl health          whether the server and its services serve; exit code 3 if one does not
  sortitionctl admin ACTION    actions of operators, over the server's --admin_listen: drain, clients, forget CLIENT,
                               self-test DEVICE, quarantine DEVICE [WHY], log-level LEVEL
  sortitionctl bench           loads the server and measures latency and tokens a second (--target, --streams, --rate,
                               --duration; --json FILE, --plot FILE); checks that each row gets its token
  sortitionctl watch           live counters, one line an interval (--interval, --count)
  sortitionctl detect FILE     tests a text for a watermark: token ids in decimal (--key_file); - reads stdin
  sortitionctl sample FILE     draws a token from one row: a .npy array or raw elements (--dtype); - reads stdin
  sortitionctl verify FILE...  checks receipts: signatures, chains, draws (--seeds), rows (--logits); docs/receipts.md
  sortitionctl receipts ACTION receipts where others read them: export FILE as JSON, root FILE..., and of one receipt
                               prove FILE... (--chain, --index); docs/receipts-elsewhere.md
  sortitionctl replay FILE     draws the tokens of receipts again on the server (--seeds, --logits), and compares

Exit codes: 0 done, 1 wrong use, 2 no answer from the server within --timeout, 3 refused by the server; of verify: 4
something differs, 5 a check that was asked for was not made for all receipts. Of bench: 0 each row got its token, 2 a
row got no answer, 3 a row was refused, 4 a row is lost.)";

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(kUsage);
  absl::FlagsUsageConfig config;
  // The table of options has a flag for each number (sampling_flags.cc).
  config.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "client/cli/") || absl::StrContains(file, "kernels/law/options.inc");
  };
  config.version_string = [] { return std::string(service::Version()) + "\n"; };
  absl::SetFlagsUsageConfig(config);
  const std::vector<char*> positional = absl::ParseCommandLine(argc, argv);
  const std::string command = positional.size() > 1 ? positional[1] : "";
  const std::vector<std::string> arguments(positional.begin() + (command.empty() ? 1 : 2), positional.end());
  if (command == "admin") return static_cast<int>(Admin(arguments));
  if (command == "bench") return static_cast<int>(Bench(arguments));
  if (command == "detect") return static_cast<int>(Detect(arguments));
  if (command == "receipts") return static_cast<int>(Receipts(arguments));
  if (command == "replay") return static_cast<int>(Replay(arguments));
  if (command == "verify") return static_cast<int>(Verify(arguments));
  if (command == "sample") return static_cast<int>(Sample(arguments));
  if (arguments.empty() && command == "info") return static_cast<int>(Info());
  if (arguments.empty() && command == "devices") return static_cast<int>(Devices());
  if (arguments.empty() && command == "health") return static_cast<int>(Health());
  if (arguments.empty() && command == "watch") return static_cast<int>(Watch());
  std::fprintf(stderr, "sortitionctl %s\n", kUsage);
  return static_cast<int>(Outcome::kWrongUse);
}

}  // namespace
}  // namespace sortition::cli

int main(int argc, char** argv) {
  const int code = sortition::cli::Main(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "sortitionctl: cannot write the output\n");
  return code != 0 ? code : static_cast<int>(sortition::cli::Outcome::kWrongUse);
}
