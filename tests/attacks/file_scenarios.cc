// Followed files that other things take the place of while the server serves.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "kernels/check.h"
#include "tests/attacks/scenario.h"
#include "tests/server/server_process.h"

namespace sortition::attacks {
namespace {

namespace fs = std::filesystem;

enum class Form { kFolder, kFifo, kEmpty, kUnreadable, kHuge };

void Make(Form form, const std::string& path) {
  constexpr off_t kHugeBytes = off_t{8} << 30;  // of a hole
  if (form == Form::kFolder) {
    fs::create_directory(path);
  } else if (form == Form::kFifo) {
    SORTITION_CHECK(mkfifo(path.c_str(), 0600) == 0);
  } else {
    server::WriteFile(path, "");
  }
  if (form == Form::kUnreadable) fs::permissions(path, fs::perms::none);
  if (form == Form::kHuge) fs::resize_file(path, kHugeBytes);
}

// Puts each form in the place of the file in turn, long enough that the server looks at it, and the file back.
Traffic Replace(const Attacked& attacked, const std::string& path) {
  const std::string kept = path + ".kept";
  fs::rename(path, kept);
  for (const Form form : {Form::kFolder, Form::kFifo, Form::kEmpty, Form::kUnreadable, Form::kHuge}) {
    if (*attacked.stop) break;
    Make(form, path);
    absl::SleepFor(std::max(absl::Milliseconds(1'500), (attacked.end - absl::Now()) / 5));
    fs::remove_all(path);
  }
  fs::rename(kept, path);
  return {};
}

const Scenario kFileScenarios[] = {
    {"files", "clients", "the list of clients is replaced by what is no list",
     [](const Attacked& attacked) { return Replace(attacked, attacked.clients); }},
    {"files", "policies", "the policies are replaced by what is no file of policies",
     [](const Attacked& attacked) { return Replace(attacked, attacked.policies); }},
    {"files", "tls_key", "the key of TLS is replaced by what is no key",
     [](const Attacked& attacked) { return Replace(attacked, attacked.tls_key); }},
    {"files", "tls_certificate", "the certificate of TLS is replaced by what is no certificate",
     [](const Attacked& attacked) { return Replace(attacked, attacked.tls_certificate); }},
};

}  // namespace

std::span<const Scenario> FileScenarios() { return kFileScenarios; }

}  // namespace sortition::attacks
