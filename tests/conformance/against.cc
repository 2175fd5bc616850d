// Work goes in units, each a function of the seed and its number. So a comparison continues where it was left.
#include "tests/conformance/against.h"

#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

constexpr uint32_t kUnitRows = 256;
constexpr absl::Duration kProgress = absl::Seconds(10);
constexpr uint64_t kMostNamed = 10;  // differences that are printed

// How far a comparison has come.
struct Progress {
  uint64_t units = 0;
  uint64_t rows = 0;       // compared
  uint64_t different = 0;  // of these
  uint64_t left_out = 0;   // that a side lacks a feature for
};

// The file of a comparison: one line.
class ResumeFile {
 public:
  explicit ResumeFile(const AgainstOptions& options)
      : path_(options.resume), start_(absl::StrCat("sortition against 1; seed ", options.seed, "; ", options.sides)) {}

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

// Random rows on two devices.
class TwoDevices final : public Sides {
 public:
  TwoDevices(Device* one, Device* other) : sides_{one, other} {}

  absl::Status Compare(uint64_t seed, Progress* progress) override {
    std::vector<std::unique_ptr<RandomRow>> rows;
    for (uint32_t i = 0; i < kUnitRows; ++i) {
      auto row = MakeRow(seed * kUnitRows + i);
      if (IsFor(row->request(), *sides_[0]) && IsFor(row->request(), *sides_[1])) {
        rows.push_back(std::move(row));
      } else {
        ++progress->left_out;
      }
    }
    std::vector<kernels::RowOutput> outputs[2];
    for (int side = 0; side < 2; ++side) {
      auto answered = Answer(sides_[side], rows);
      if (!answered.ok()) return answered.status();
      outputs[side] = *std::move(answered);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      ++progress->rows;
      if (outputs[0][i] == outputs[1][i]) continue;
      ++progress->different;
      Name(rows[i]->description(), *progress);
    }
    return absl::OkStatus();
  }

 private:
  // Most vocabularies are small, so that rows differ in their options. One in 64 is of thousands of tokens.
  static std::unique_ptr<RandomRow> MakeRow(uint64_t seed) {
    const uint32_t vocabulary = seed % 64 == 63 ? 1000 + uint32_t(seed / 64 % 12'000) : 1 + uint32_t(seed / 3 % 400);
    auto row =
        std::make_unique<RandomRow>(seed, vocabulary, seed % 2 == 1 ? OptionsKind::kChained : OptionsKind::kPlain);
    if (seed % 4 >= 2) row->AskForMore();
    if (seed % 16 == 4) row->AskForRecord();
    if (seed % 16 == 6) row->AskForBlock();
    if (seed % 16 == 9) row->KeepAtLeast();
    if (seed % 4 == 2) row->AskForRounds();
    return row;
  }

  static bool IsFor(const kernels::RowRequest& request, const Device& device) {
    return request.live_vocabulary <= device.description().max_vocabulary &&
           (kernels::FeaturesOf(request) & ~device.description().features) == 0;
  }

  static absl::StatusOr<std::vector<kernels::RowOutput>> Answer(Device* device,
                                                                const std::vector<std::unique_ptr<RandomRow>>& rows) {
    std::vector<kernels::RowOutput> outputs;
    while (outputs.size() < rows.size()) {
      std::vector<devices::DeviceRow> batch;
      for (size_t i = outputs.size(); i < rows.size() && batch.size() < device->description().max_batch_rows; ++i) {
        devices::DeviceRow& row = batch.emplace_back();
        row.request = rows[i]->request();
        row.segments.push_back({rows[i]->tensor().data(), rows[i]->tensor().size()});
      }
      devices::BatchOutput output = devices::RunBatch(device, std::move(batch));
      if (!output.status.ok()) return output.status;
      std::move(output.outputs.begin(), output.outputs.end(), std::back_inserter(outputs));
    }
    return outputs;
  }

  Device* const sides_[2];
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
      return absl::UnimplementedError("the sides have hardly a row that both can take");
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
    const auto second = StartDevice(std::string(absl::StripPrefix(other, "local:")));
    if (!second.ok()) return Report(second.status(), options);
    TwoDevices sides(device, second->get());
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
