// Compares the kernels of any backend with the reference, in every bit of every output: the same rows and checks for
// the CPU, CUDA and Vulkan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/features.h"
#include "kernels/row.h"
#include "tests/conformance/random_row.h"

namespace sortition::testing {

// A row, with its logits as bytes and its name in failures.
struct ComparedRow {
  kernels::RowRequest request;
  std::span<const std::byte> tensor;
  std::string description;
  std::shared_ptr<const void> owner;  // keeps the request's data alive
};

// Kernels that sample batches of rows.
class Backend {
 public:
  virtual ~Backend() = default;
  // A name for failures. It may say how the last batch was run.
  virtual std::string name() const = 0;
  virtual uint32_t max_vocabulary() const { return kernels::kMaxVocabulary; }
  virtual kernels::Features features() const { return kernels::kAllFeatures; }
  // The most rows of a batch.
  virtual size_t batch_rows() const { return 1; }
  // Returns the rows' outputs in order; fewer after a failure that it has reported.
  virtual std::vector<kernels::RowOutput> Sample(std::span<const ComparedRow> rows) = 0;
};

// Compares rows, a batch at a time. Every row that is added is compared with every backend; the destructor asserts it.
class Comparison {
 public:
  explicit Comparison(Backend* backend) : Comparison(std::vector<Backend*>{backend}) {}
  explicit Comparison(std::vector<Backend*> backends);
  ~Comparison();
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // Fails the test if a backend cannot take the row.
  void Add(ComparedRow row);
  void Add(std::unique_ptr<kernels::RandomRow> row);

  // Compares the rows that wait for a full batch.
  void Flush();

  uint64_t added() const { return added_; }
  uint64_t compared() const { return compared_; }

 private:
  const std::vector<Backend*> backends_;
  size_t batch_rows_;
  std::vector<ComparedRow> waiting_;
  size_t waiting_bytes_ = 0;
  uint64_t added_ = 0;
  uint64_t compared_ = 0;
};

// Options of random rows.
enum class RowKind {
  kPlain,         // a token by the plain filters, and logprobs
  kTasks,         // any task, and all answers besides the token
  kChained,       // any samplers in any order
  kChainedTasks,  // both
  kMixed,         // each of these
  kRecord,        // these, with the tempered distribution, the kept mass and places in the race
};
std::unique_ptr<kernels::RandomRow> MakeRow(RowKind kind, uint64_t seed, uint32_t vocabulary);

// Each of these adds rows and compares them, and asserts how many were compared. `rows` is a number at full scale
// (tests/support/scale.h): slow backends take fewer.
void CompareSmallRows(Comparison* comparison, RowKind kind, uint64_t rows);     // to 400 tokens
void CompareMiddlingRows(Comparison* comparison, RowKind kind, uint64_t rows);  // to 12,400 tokens
void CompareAtVocabulary(Comparison* comparison, RowKind kind, uint32_t vocabulary, uint64_t rows);
// Vocabularies of models, and those around the sizes of groups, tiles and sections.
std::span<const uint32_t> UsualVocabularies();
void CompareGoldenRows(Comparison* comparison);
// Rows for which kernels have special paths: top-p that keeps much, or with an end that a sample misjudges; masks that
// hide the largest tokens; tokens just within and just beyond a distance; thresholds that are met exactly; top-p alone,
// whose race comes first, and drops its winner or keeps it; drafts after which no token has a weight left.
void CompareWhereTopPKeepsMuch(Comparison* comparison, uint64_t rows);
void CompareWhereAMaskHidesTheLargest(Comparison* comparison, uint64_t rows);
void CompareWhereASampleMisleads(Comparison* comparison, uint64_t rows);
void CompareAroundDistances(Comparison* comparison, uint64_t rows);  // at any scale
void CompareWhereAThresholdIsMetExactly(Comparison* comparison);     // 100,000 rows
void CompareTopPAlone(Comparison* comparison, uint64_t rows);
void CompareWhereADraftLeavesNoWeight(Comparison* comparison, uint64_t rows);

}  // namespace sortition::testing
