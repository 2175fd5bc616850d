// Work goes in units, each a function of the seed and its number. So a comparison continues where it was left.
#include "tests/conformance/against.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "devices/run_batch.h"
#include "kernels/features.h"
#include "tests/conformance/found_devices.h"
#include "tests/conformance/random_row.h"
#include "tests/conformance/random_texts.h"

namespace sortition {
namespace {

using devices::Device;
using kernels::OptionsKind;
using kernels::RandomRow;
using kernels::RowOutput;
using kernels::RowRequest;

constexpr uint32_t kUnitRows = 256;
constexpr absl::Duration kProgress = absl::Seconds(10);
constexpr uint64_t kMostNamed = 10;  // differences that are printed

// How far a comparison has come.
struct Progress {
  uint64_t units = 0;
  uint64_t rows = 0;       // compared
  uint64_t different = 0;  // of these
  uint64_t left_out = 0;   // that some side lacks a feature for
};

// The file of a comparison: one line.
class ResumeFile {
 public:
  explicit ResumeFile(const AgainstOptions& options)
      : path_(options.resume), start_(absl::StrCat("sortition against 2; seed ", options.seed, "; ", options.sides)) {}

  absl::StatusOr<Progress> Read() const {
    Progress progress;
    std::ifstream file(path_);
    if (path_.empty() || !file) return progress;
    std::string start, word;
    std::getline(file, start);
    if (start != start_) return absl::FailedPreconditionError(absl::StrCat(path_, ": is of \"", start, "\""));
    if (!(file >> word >> progress.units >> word >> progress.rows >> word >> progress.different >> word >>
          progress.left_out)) {
      return absl::FailedPreconditionError(absl::StrCat(path_, ": cannot be read"));
    }
    return progress;
  }
  // Replaces the file in one step.
  absl::Status Write(const Progress& progress) const {
    if (path_.empty()) return absl::OkStatus();
    std::ofstream file(path_ + ".new");
    file << start_ << "\nunits " << progress.units << " rows " << progress.rows << " different " << progress.different
         << " left_out " << progress.left_out << "\n";
    file.close();
    if (file && std::rename((path_ + ".new").c_str(), path_.c_str()) == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path_, ": cannot be written"));
  }

 private:
  const std::string path_;
  const std::string start_;
};

// Compares the rows of a unit.
class Sides {
 public:
  virtual ~Sides() = default;
  virtual absl::Status Compare(uint64_t seed, Progress* progress) = 0;
};

void Name(const std::string& difference, const Progress& progress) {
  if (progress.different <= kMostNamed) std::cerr << "differs: " << difference << "\n";
}

// Random rows on devices: each answer is compared with the first device's.
class AllDevices final : public Sides {
 public:
  explicit AllDevices(std::vector<Device*> devices) : devices_(std::move(devices)) {}

  absl::Status Compare(uint64_t seed, Progress* progress) override {
    std::vector<std::unique_ptr<RandomRow>> rows;
    for (uint32_t i = 0; i < kUnitRows; ++i) {
      auto row = MakeRow(seed * kUnitRows + i);
      const auto takes = [&](Device* device) { return IsFor(row->request(), device->description()); };
      if (std::all_of(devices_.begin(), devices_.end(), takes)) {
        rows.push_back(std::move(row));
      } else {
        ++progress->left_out;
      }
    }
    std::vector<std::vector<RowOutput>> outputs;
    for (Device* const device : devices_) {
      auto answered = Answer(device, rows);
      if (!answered.ok()) return answered.status();
      outputs.push_back(*std::move(answered));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      ++progress->rows;
      std::string others;
      for (size_t side = 1; side < devices_.size(); ++side) {
        if (outputs[side][i] != outputs[0][i]) absl::StrAppend(&others, " ", devices_[side]->description().hardware);
      }
      if (others.empty()) continue;
      ++progress->different;
      Name(absl::StrCat(rows[i]->description(), ":", others), *progress);
    }
    return absl::OkStatus();
  }

 private:
  // Returns one of the rows that docs/proof.md states. Rows with many answers take three times as long as the others.
  static std::unique_ptr<RandomRow> MakeRow(uint64_t seed) {
    const bool is_large = seed % 64 == 63;
    const uint32_t vocabulary = is_large ? 1000 + uint32_t(seed / 64 % 12'000) : 1 + uint32_t(seed / 3 % 400);
    const uint64_t kind = seed + seed / 64;  // large rows have each kind, too
    auto row =
        std::make_unique<RandomRow>(seed, vocabulary, kind % 2 == 1 ? OptionsKind::kChained : OptionsKind::kPlain);
    if (kind % 16 == 4) row->FilterBySigmaFirst();
    const bool wants_more = kind % 8 / 2 == 1;
    if (wants_more) row->AskForMore();
    if (kind % 16 >= 10 && kind % 16 < 14) row->AskForRecord();
    if (wants_more && kind % 32 < 16) row->AskForBlock();
    if (kind % 5 == 0) row->KeepAtLeast();
    if (wants_more) row->AskForRounds();
    return row;
  }

  static bool IsFor(const RowRequest& request, const devices::DeviceDescription& description) {
    return request.live_vocabulary <= description.max_vocabulary &&
           (kernels::FeaturesOf(request) & ~description.features) == 0;
  }

  static absl::StatusOr<std::vector<RowOutput>> Answer(Device* device,
                                                       const std::vector<std::unique_ptr<RandomRow>>& rows) {
    std::vector<RowOutput> outputs;
    while (outputs.size() < rows.size()) {
      const size_t count = std::min<size_t>(rows.size() - outputs.size(), device->description().max_batch_rows);
      std::vector<devices::DeviceRow> batch(count);
      std::vector<const devices::DeviceRow*> pointers;
      for (devices::DeviceRow& row : batch) {
        const RandomRow& made = *rows[outputs.size() + pointers.size()];
        row.request = made.request();
        row.segments.push_back({made.tensor().data(), made.tensor().size()});
        pointers.push_back(&row);
      }
      devices::BatchOutput output = devices::RunBatchHere(device, pointers);
      if (!output.status.ok()) return output.status;
      std::move(output.outputs.begin(), output.outputs.end(), std::back_inserter(outputs));
    }
    return outputs;
  }

  const std::vector<Device*> devices_;
};

// Random texts in this process and by a service.
class ServiceAndProcess final : public Sides {
 public:
  explicit ServiceAndProcess(std::unique_ptr<client::Client> client) : client_(std::move(client)) {}

  absl::Status Compare(uint64_t seed, Progress* progress) override {
    const auto name = [&](const std::string& difference) {
      ++progress->different;
      Name(difference, *progress);
    };
    const auto compared = CompareTexts(seed, client_.get(), name);
    if (!compared.ok()) return compared.status();
    progress->rows += *compared;
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<client::Client> client_;
};

void Print(const Progress& progress, const AgainstOptions& options, uint64_t rows_before, absl::Time start) {
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double rate = double(progress.rows - rows_before) / std::max(seconds, 1e-3);
  const double left = rate > 0 ? double(options.rows - std::min(options.rows, progress.rows)) / rate : 0;
  std::cerr << absl::StrFormat("%s: %d of %d rows, %d differ, %d left out, %.0f rows/s, %.0f s left\n", options.sides,
                               progress.rows, options.rows, progress.different, progress.left_out, rate, left);
}

absl::StatusOr<Progress> CompareAll(const AgainstOptions& options, Sides* sides) {
  const ResumeFile file(options);
  auto read = file.Read();
  if (!read.ok()) return read.status();
  Progress progress = *read;
  const uint64_t before = progress.rows;
  const absl::Time start = absl::Now();
  absl::Time printed = start;
  while (progress.rows < options.rows) {
    if (absl::Status status = sides->Compare(options.seed * 1'000'000'000 + progress.units, &progress); !status.ok()) {
      return status;
    }
    ++progress.units;
    if (progress.left_out > 1000 + 1000 * progress.rows) {
      return absl::UnimplementedError("the sides have hardly a row that all can take");
    }
    if (absl::Now() - printed < kProgress) continue;
    printed = absl::Now();
    Print(progress, options, before, start);
    if (absl::Status status = file.Write(progress); !status.ok()) return status;
  }
  Print(progress, options, before, start);
  if (absl::Status status = file.Write(progress); !status.ok()) return status;
  return progress;
}

int Report(const absl::StatusOr<Progress>& progress, const AgainstOptions& options) {
  if (!progress.ok()) {
    std::cerr << "sortition_self_test: " << options.sides << ": " << progress.status().message() << "\n";
    return 2;
  }
  std::cout << options.sides << ": " << progress->rows << " rows compared, " << progress->different << " differ, "
            << progress->left_out << " left out\n";
  return progress->different == 0 ? 0 : 1;
}

}  // namespace

int RunAgainst(const AgainstOptions& options, Device* device, const std::string& other, const Connector& connect) {
  if (absl::StartsWith(other, "local:")) {
    std::vector<std::unique_ptr<Device>> started;
    std::vector<Device*> all = {device};
    const std::vector<std::string> names = absl::StrSplit(absl::StripPrefix(other, "local:"), ",local:");
    for (const std::string& name : names) {
      auto one = StartDevice(name);
      if (!one.ok()) return Report(one.status(), options);
      all.push_back(started.emplace_back(*std::move(one)).get());
    }
    AllDevices sides(std::move(all));
    return Report(CompareAll(options, &sides), options);
  }
  if (device->description().kind != "cpu") {
    return Report(absl::InvalidArgumentError("beside a service --device is cpu"), options);
  }
  auto client = connect({other});
  if (!client.ok()) return Report(client.status(), options);
  ServiceAndProcess sides(*std::move(client));
  return Report(CompareAll(options, &sides), options);
}

}  // namespace sortition
