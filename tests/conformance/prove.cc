// Writes and compares archives, and starts the comparison of two sides.
#include "tests/conformance/prove.h"

#include <sys/utsname.h>

#include <iostream>
#include <memory>
#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/archive/archive.h"
#include "client/archive/drawer.h"
#include "client/archive/receipt_columns.h"
#include "client/archive/settings.h"
#include "client/archive/vectors.h"
#include "client/bench/report.h"
#include "kernels/law/version.h"
#include "sortition/client.h"
#include "tests/conformance/against.h"
#include "tests/conformance/found_devices.h"

ABSL_FLAG(std::string, prove, "", "File for an archive of what one device, or a service, answers");
ABSL_FLAG(std::string, device, "cpu", "The device of --prove and --against: reference, cpu, cpu:TARGET, cuda0, ...");
ABSL_FLAG(std::vector<std::string>, endpoint, {}, "Addresses of a service that answers in the place of --device");
ABSL_FLAG(std::string, transport, "auto", "How messages travel to --endpoint: auto, grpc or ring");
ABSL_FLAG(std::string, row_form, "auto", "How rows travel to --endpoint: auto, full, compact or compact(COUNT)");
ABSL_FLAG(std::string, made_by, "", "Name of the maker, for the archive");
ABSL_FLAG(uint32_t, texts, sortition::archive::kAllTexts,
          "How many texts of each setting --prove draws, for a slow device; all by default");
ABSL_FLAG(bool, compare, false, "Compare the two archives that are the arguments");
ABSL_FLAG(std::string, against, "",
          "Compare --device with another side over --rows rows: local:DEVICE, or the address of a service");
ABSL_FLAG(std::string, resume, "", "File that keeps how far --against has come; it goes on from there");

ABSL_DECLARE_FLAG(uint64_t, rows);
ABSL_DECLARE_FLAG(uint64_t, seed);

namespace sortition {
namespace {

using archive::Files;
using archive::Settings;

constexpr int kRight = 0, kDiffers = 1, kUnusable = 2;

int Refuse(const absl::Status& status) {
  std::cerr << "sortition_self_test: " << status.message() << "\n";
  return status.code() == absl::StatusCode::kDataLoss ? kDiffers : kUnusable;
}

std::string SystemName() {
  utsname name = {};
  return uname(&name) == 0 ? absl::StrCat(name.sysname, " ", name.release, " ", name.machine) : "unknown";
}

// Draws all texts. Sets what depends on the side.
struct Side {
  std::string device, hardware, transport = "none";
};

absl::StatusOr<Files> Draw(archive::Drawer* drawer, Side side, devices::Device* device, client::Client* client) {
  const uint32_t each = absl::GetFlag(FLAGS_texts);
  const Settings settings = Settings::Own().First(each);
  auto drawn = DrawTexts(settings, drawer, [](uint32_t step) {
    if (step % 64 == 0) std::cerr << "step " << step << "\n";
  });
  if (!drawn.ok()) return drawn.status();
  const archive::Receipts& receipts = drawn->receipts;
  if (client != nullptr) {
    const client::TransportInUse in_use = client->transport_in_use();
    side.transport =
        absl::StrCat(in_use.kind == client::TransportKind::kRing ? "ring" : "grpc",
                     in_use.row_memory ? ", rows in shared memory" : "", ", rows ", absl::GetFlag(FLAGS_row_form));
  }
  auto columns = archive::PackReceipts(receipts.records);
  if (!columns.ok()) return columns.status();
  auto vectors = archive::AnswerVectors(device);
  if (!vectors.ok()) return vectors.status();
  std::string seeds;
  for (const uint32_t text : settings.drawn()) {
    absl::StrAppend(&seeds, *settings.OptionsOf(text).seed, " ", absl::BytesToHexString(archive::SaltOf(text)), "\n");
  }
  Files files;
  std::vector<std::pair<std::string, std::string>> machine = {
      {"format", std::string(archive::kFormat)},
      {"law_version", absl::StrCat(law::kLawVersion)},
      {"made", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone())},
      {"by", absl::GetFlag(FLAGS_made_by)},
      {"release", SORTITION_VERSION},
      {"build", absl::StrCat("compiler ", __VERSION__)},
      {"processor", bench::MachineName()},
      {"system", SystemName()},
      {"device", receipts.rows_by_cpu == 0
                     ? side.device
                     : absl::StrCat(side.device, ", and the CPU for ", receipts.rows_by_cpu, " rows that it lacks")},
      {"hardware", side.hardware},
      {"transport", side.transport},
      {"public_key", absl::BytesToHexString(receipts.public_key)}};
  if (each != archive::kAllTexts) machine.emplace_back("texts", absl::StrCat(each));
  files["machine.json"] = archive::JsonObject(machine);
  files["settings.json"] = settings.json();
  files["vectors.json"] = *std::move(vectors);
  files["texts.bin"] = std::move(drawn->texts);
  files["seeds.txt"] = std::move(seeds);
  files["receipts.bin"] = *std::move(columns);
  files["signature.bin"] = receipts.signature;
  return files;
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(std::vector<std::string> targets) {
  client::ClientOptions options;
  options.targets = std::move(targets);
  options.name = "sortition_self_test";
  const std::string transport = absl::GetFlag(FLAGS_transport);
  if (transport == "grpc") {
    options.transport.kind = client::TransportKind::kGrpc;
  } else if (transport == "ring") {
    options.transport.kind = client::TransportKind::kRing;
  } else if (transport != "auto") {
    return absl::InvalidArgumentError("--transport is auto, grpc or ring");
  }
  const auto form = client::RowFormOptions::Parse(absl::GetFlag(FLAGS_row_form));
  if (!form) return absl::InvalidArgumentError("--row_form is auto, full, compact or compact(COUNT)");
  options.rows = *form;
  return client::Client::Connect(std::move(options));
}

absl::StatusOr<Files> Prove() {
  const std::vector<std::string> targets = absl::GetFlag(FLAGS_endpoint);
  if (!targets.empty()) {
    const auto client = Connect(targets);
    if (!client.ok()) return client.status();
    return Draw(archive::ByClient(client->get(), true).get(), {"a service", "a service's"}, nullptr, client->get());
  }
  const auto device = StartDevice(absl::GetFlag(FLAGS_device));
  if (!device.ok()) return device.status();
  return Draw(archive::OnDevice(device->get()).get(), {absl::GetFlag(FLAGS_device), (*device)->description().hardware},
              device->get(), nullptr);
}

int ProveTo(const std::string& path) {
  auto files = Prove();
  if (!files.ok()) return Refuse(files.status());
  const std::string archive = archive::MakeArchive(*std::move(files));
  if (!bench::WriteFile(path, archive)) return kUnusable;
  // A full disk would cut it.
  const auto read = archive::ReadArchive(path);
  if (!read.ok()) return Refuse(read.status());
  std::cout << path << ": " << archive.size() << " bytes\n";
  return kRight;
}

int Compare(const std::vector<std::string>& paths) {
  if (paths.size() != 2) return Refuse(absl::InvalidArgumentError("--compare takes two archives"));
  std::vector<Files> archives;
  for (const std::string& path : paths) {
    auto files = archive::ReadArchive(path);
    if (!files.ok()) return Refuse(files.status());
    archives.push_back(*std::move(files));
  }
  const auto comparison = archive::CompareTexts(archives[0], archives[1]);
  if (!comparison.ok()) return Refuse(comparison.status());
  for (const std::string& line : comparison->lines) std::cout << line << "\n";
  const uint32_t left = Settings::Own().texts() - comparison->texts;
  const std::string others = left == 0 ? "" : absl::StrCat("; ", left, " were not compared, for an archive lacks them");
  if (!comparison->lines.empty()) {
    std::cout << comparison->lines.size() << " of " << comparison->texts << " texts differ" << others << "\n";
    return kDiffers;
  }
  std::cout << "all " << comparison->texts << " texts are equal, in every bit" << others << "; receipts "
            << (archives[0]["receipts.bin"] == archives[1]["receipts.bin"] ? "are equal" : "were not compared") << "\n";
  return kRight;
}

int StartAgainst(const std::string& other) {
  const auto device = StartDevice(absl::GetFlag(FLAGS_device));
  if (!device.ok()) return Refuse(device.status());
  AgainstOptions options;
  options.rows = absl::GetFlag(FLAGS_rows);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.sides = absl::StrCat(absl::GetFlag(FLAGS_device), " against ", other);
  return RunAgainst(options, device->get(), other, &Connect);
}

}  // namespace

std::optional<int> RunArchives(const std::vector<std::string>& files) {
  if (absl::GetFlag(FLAGS_compare)) return Compare(files);
  if (!files.empty()) return Refuse(absl::InvalidArgumentError("only --compare takes arguments"));
  if (const std::string path = absl::GetFlag(FLAGS_prove); !path.empty()) {
    if (absl::GetFlag(FLAGS_texts) == 0) return Refuse(absl::InvalidArgumentError("--texts is at least 1"));
    return ProveTo(path);
  }
  if (const std::string other = absl::GetFlag(FLAGS_against); !other.empty()) return StartAgainst(other);
  return std::nullopt;
}

}  // namespace sortition
