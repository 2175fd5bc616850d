// Every device of this machine answers the same random rows, and each answer is compared with the law's reference bit
// for bit. For machines with hardware that tests do not have; exits with 1 if a bit is wrong, or if a driver or device
// that is there does not start.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/bench/report.h"
#include "devices/cuda/hardware.h"
#include "devices/self_test/self_test.h"
#include "kernels/features.h"
#include "kernels/law/reference.h"
#include "tests/conformance/found_devices.h"
#include "tests/conformance/prove.h"
#include "tests/conformance/random_row.h"
#include "tests/conformance/sampler_rows.h"
#include "tests/conformance/shared_rows.h"
#include "tests/support/run_batch.h"

ABSL_FLAG(std::vector<std::string>, devices, (std::vector<std::string>{"cpu", "cuda", "vulkan"}), "Kinds of devices");
ABSL_FLAG(uint64_t, rows, 4000, "Random rows of up to 400 tokens; of larger vocabularies fewer, in proportion");
ABSL_FLAG(uint64_t, seed, 1, "Other rows for another one");
ABSL_FLAG(std::string, json, "", "File for the results");
ABSL_FLAG(std::string, images, "", "Folder with other machine code of the CUDA kernels: {sample,chain,sequence}.cubin");
// Used by the process that this one starts.
ABSL_FLAG(int, shared_rows_device, 0, "Which CUDA device, in the driver's order, has --shared_rows_descriptor");
ABSL_FLAG(int, shared_rows_descriptor, -1, "Memory of the device, to be checked instead of all else");

namespace sortition {
namespace {

using devices::BatchOutput;
using devices::Device;
using devices::DeviceRow;
using kernels::RandomRow;
using testing::RunBatch;

constexpr size_t kBatch = 64;

// The CUDA kernels that --images names; otherwise this build's.
struct ChosenImages {
  std::string files[3];

  // The result refers to this object. Exits if a file cannot be read.
  kernels::cuda::Images Read() {
    const std::string folder = absl::GetFlag(FLAGS_images);
    if (folder.empty()) return kernels::cuda::CompiledImages();
    const char* const names[] = {"sample", "chain", "sequence"};
    for (size_t i = 0; i < 3; ++i) {
      const std::string name = absl::StrCat(folder, "/", names[i], ".cubin");
      std::ifstream file(name, std::ios::binary);
      files[i].assign(std::istreambuf_iterator<char>(file), {});
      if (files[i].empty()) {
        std::cerr << "--images: cannot read " << name << "\n";
        std::exit(1);
      }
    }
    return {std::as_bytes(std::span(files[0])), std::as_bytes(std::span(files[1])), std::as_bytes(std::span(files[2]))};
  }
};

// How a device has done.
struct Tally {
  uint64_t rows = 0;
  uint64_t wrong = 0;
  uint64_t unanswered = 0;  // its batch ended with an error
  uint64_t chained = 0;     // rows with a chain; likewise below
  uint64_t scored = 0;
  uint64_t verified = 0;
  uint64_t kept_sets = 0;
  kernels::Features features = kernels::kNoFeatures;  // required by some row

  void Count(const kernels::RowRequest& request) {
    ++rows;
    chained += !request.parameters->chain.empty();
    scored += request.task == kernels::RowTask::kScore;
    verified += request.task == kernels::RowTask::kVerify;
    kept_sets += request.parameters->kept_tokens;
    features |= kernels::FeaturesOf(request);
  }
};

void Compare(Device* device, const std::vector<std::unique_ptr<RandomRow>>& rows,
             const std::vector<kernels::RowOutput>& expected, Tally* tally) {
  std::vector<DeviceRow> batch;
  std::vector<size_t> index;
  for (size_t i = 0; i < rows.size(); ++i) {
    const kernels::RowRequest& request = rows[i]->request();
    if (request.live_vocabulary > device->description().max_vocabulary) continue;
    if ((kernels::FeaturesOf(request) & ~device->description().features) != 0) continue;
    DeviceRow row;
    row.request = request;
    row.segments.push_back({rows[i]->tensor().data(), rows[i]->tensor().size()});
    batch.push_back(std::move(row));
    index.push_back(i);
  }
  if (batch.empty()) return;
  const BatchOutput result = RunBatch(device, std::move(batch));
  if (!result.status.ok()) {
    tally->unanswered += index.size();
    std::cerr << device->description().name << ": " << result.status.message() << "\n";
    return;
  }
  for (size_t i = 0; i < index.size(); ++i) {
    tally->Count(rows[index[i]]->request());
    if (result.outputs[i] == expected[index[i]]) continue;
    if (++tally->wrong <= 10) {
      std::cerr << device->description().name << ": wrong: " << rows[index[i]]->description() << "\n";
    }
  }
}

// True if the device was right, and rows required every feature that it claims.
bool AddTo(const devices::DeviceDescription& device, const Tally& tally, bench::Report* report) {
  const struct {
    const char* name;
    uint64_t count;
  } counts[] = {{"rows", tally.rows},          {"wrong", tally.wrong},   {"unanswered", tally.unanswered},
                {"chained", tally.chained},    {"scored", tally.scored}, {"verified", tally.verified},
                {"kept_sets", tally.kept_sets}};
  for (const auto& [name, count] : counts) {
    report->Add({absl::StrCat(device.name, "/", name), double(count), "rows", {}});
  }
  const bool is_whole = (device.features & ~tally.features) == 0;
  if (!is_whole) std::cerr << device.name << ": has features that no row asked for; more --rows are needed\n";
  return is_whole && tally.rows != 0 && tally.wrong == 0 && tally.unanswered == 0;
}

// Tests of a CUDA device beyond batches of the host's rows: rows in memory of another process, if it shares memory, and
// libsortition.
bool TestMore(const devices::cuda::Hardware& hardware, bench::Report* report) {
  const struct {
    const char* name;
    const char* what;
    bool (*prove)(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows);
    bool is_there;
  } parts[] = {{"shared_rows", "rows in memory of another process", &TestSharedRows, hardware.shares_memory},
               {"sampler", "rows of libsortition", &TestSampler, true}};
  const std::string device = absl::StrCat("cuda", hardware.index);
  bool is_right = true;
  for (const auto& [name, what, prove, is_there] : parts) {
    std::cerr << device << ": " << what << (is_there ? ": " : ": skipped: it does not share memory\n");
    if (!is_there) continue;
    uint64_t rows = 0;
    const bool is_this_right = prove(hardware, absl::GetFlag(FLAGS_seed), &rows);
    std::cerr << (is_this_right ? "right\n" : "wrong\n");
    report->Add({absl::StrCat(device, "/", name), double(rows), "rows", {}});
    report->Add({absl::StrCat(device, "/", name, "_failed"), is_this_right ? 0.0 : 1.0, "runs", {}});
    is_right = is_right && is_this_right;
  }
  return is_right;
}

// "cuda0: its name; cpu0: its name".
std::string HardwareNames(const std::vector<std::unique_ptr<Device>>& devices) {
  return absl::StrJoin(devices, "; ", [](std::string* out, const std::unique_ptr<Device>& device) {
    absl::StrAppend(out, device->description().name, ": ", device->description().hardware);
  });
}

int Run() {
  if (absl::GetFlag(FLAGS_shared_rows_descriptor) >= 0) {
    return CheckSharedRows(absl::GetFlag(FLAGS_shared_rows_device), absl::GetFlag(FLAGS_shared_rows_descriptor),
                           absl::GetFlag(FLAGS_seed))
               ? 0
               : 1;
  }
  ChosenImages chosen;
  const FoundDevices found = StartFoundDevices(absl::GetFlag(FLAGS_devices), chosen.Read());
  const auto& devices = found.started;
  std::vector<Tally> tallies(devices.size());
  bench::Report report("conformance", HardwareNames(devices));
  report.Add({"not_started", double(found.failed), "devices", {}});
  bool is_right = !devices.empty() && found.failed == 0;

  const devices::SelfTest self_test;
  for (size_t d = 0; d < devices.size(); ++d) {
    const auto verdict = self_test.Run(devices[d].get(), absl::Minutes(5));
    std::cerr << devices[d]->description().name << " (" << devices[d]->description().hardware << "): golden rows "
              << (verdict.status.ok() ? "right" : std::string(verdict.status.message())) << "\n";
    is_right = is_right && verdict.status.ok();
  }

  const auto rows = static_cast<uint32_t>(std::min<uint64_t>(absl::GetFlag(FLAGS_rows), ~uint32_t{0}));
  const struct {
    uint32_t vocabulary;  // 0: up to 400
    uint32_t count;
  } parts[] = {{0, rows},
               {2049, rows / 10},
               {12'000, rows / 20},
               {50'257, rows / 80},
               {128'256, rows / 80},
               {151'936, rows / 80},
               {262'144, rows / 160}};
  for (const auto& [vocabulary, count] : parts) {
    for (uint32_t first = 0; first < count; first += kBatch) {
      std::vector<std::unique_ptr<RandomRow>> batch;
      std::vector<kernels::RowOutput> expected;
      for (uint32_t i = first; i < std::min(count, first + uint32_t(kBatch)); ++i) {
        const uint64_t seed = absl::GetFlag(FLAGS_seed) * 10'000'000 + vocabulary + i;
        const auto options = i % 2 == 1 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
        const uint32_t size = vocabulary != 0 ? vocabulary : 1 + uint32_t(seed % 400);
        batch.push_back(std::make_unique<RandomRow>(seed, size, options));
        if (i % 4 >= 2) batch.back()->AskForMore();
        if (i % 16 == 4) batch.back()->AskForRecord();  // a few: most devices do not take them
        if (i % 16 == 6) batch.back()->AskForBlock();
        if (i % 16 == 9) batch.back()->KeepAtLeast();
        if (i % 4 == 2) batch.back()->AskForRounds();
        expected.push_back(law::SampleRowReference(batch.back()->request()));
      }
      for (size_t d = 0; d < devices.size(); ++d) Compare(devices[d].get(), batch, expected, &tallies[d]);
    }
  }
  for (size_t d = 0; d < devices.size(); ++d) {
    is_right = AddTo(devices[d]->description(), tallies[d], &report) && is_right;
  }
  for (const devices::cuda::Hardware& one : found.cuda) {
    if (!absl::GetFlag(FLAGS_images).empty()) break;  // the tests take this build's
    is_right = TestMore(one, &report) && is_right;
  }
  const int published = bench::Publish(report, absl::GetFlag(FLAGS_json));
  return is_right ? published : 1;
}

}  // namespace
}  // namespace sortition

namespace sortition {
namespace {

// Returns whether a flag's help is shown: those of this program.
bool IsOwnFlag(absl::string_view file) {
  return absl::EndsWith(file, "self_test_main.cc") || absl::EndsWith(file, "conformance/prove.cc");
}

}  // namespace
}  // namespace sortition

int main(int argc, char** argv) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = &sortition::IsOwnFlag;
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(
      "compares what every device of this machine answers, bit for bit. With --prove it writes an archive of texts, "
      "with --compare it compares two, with --against it compares two sides for hours (docs/proof.md).\n\nExit codes: "
      "0 all is right, 1 an answer is wrong, or a driver or device that is there does not start, 2 an archive, a file "
      "or a side of --against cannot be used.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  const auto status = sortition::RunArchives({arguments.begin() + 1, arguments.end()});
  return status ? *status : sortition::Run();
}
