// Makes the messages of a scenario, with its fields and of its sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "service/memory/region_table.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/costs/scenario.h"
#include "tests/support/client_region.h"

namespace sortition::costs {

using Request = v1::StreamRequest;

class Messages {
 public:
  // `scenario` is not owned and outlives this.
  explicit Messages(const Scenario& scenario);

  const v1::SamplingParameters& parameters() const { return parameters_; }
  uint32_t live_vocabulary() const { return live_; }
  // Sequences, "s0" and so on. Steps have one row for each.
  uint32_t rows() const { return rows_; }
  uint32_t positions() const { return positions_; }  // of a row
  uint64_t all_positions() const { return has_rows() ? uint64_t{rows_} * positions_ : 0; }
  uint32_t shards() const { return shards_; }  // of a step; 1 if it is whole

  Request Hello() const;
  Request Open(const std::string& id, uint64_t epoch, bool has_history = true) const;
  Request Fork(const std::string& id) const;
  // `is_plain`: only a draw for each sequence.
  Request Step(uint64_t batch_id, bool is_plain = false);
  // Shard 0 of a step.
  Request Shard(uint64_t batch_id);
  // Shard `index` of the step of which `first` is shard 0.
  Request OtherShard(uint64_t batch_id, uint32_t index, const Request& first);
  v1::SampleRequest Sample() const;
  Request Close() const;
  Request Upload() const;
  Request Attach(std::shared_ptr<service::MemoryConnection> connection);
  Request BringAnswer(uint32_t row) const;
  // Shard `index` of a step of `rows` rows, which answers of BringAnswer answer.
  Request Brought(uint64_t batch_id, uint32_t index, uint32_t rows) const;
  // The answers that a scenario brings, or the shards that wait for one.
  uint32_t brought() const;

  // Notes the place of the sequences, which later messages name. They have equal histories and draw equal tokens.
  void NotePlace(const v1::OpenedState& state);
  // Notes the checkpoints of a plain step's results, which the next step brings.
  void NoteDrawn(const v1::StepResults& results);

 private:
  // Tokens of a row, or of a shard of it.
  struct Part {
    uint32_t begin = 0;
    uint32_t end = 0;
  };

  bool has_rows() const { return scenario_.is_step() || scenario_.kind == Kind::kSample; }
  bool Has(std::string_view option) const { return scenario_.Has(option); }
  uint32_t Size(std::string_view name, uint64_t most) const;
  uint64_t Word(std::string_view key) const { return WordOf(scenario_.seed, key); }
  bool has_probabilities() const { return Has("draft_row") || Has("sparse_probabilities"); }

  void SetShape();
  void SetShards();
  // Tokens that one compact row may list.
  uint32_t MostListed() const;
  Part PartOf(uint32_t shard) const;
  Request MakeStep(uint64_t batch_id, bool is_plain, Part part);
  void SetShard(uint32_t index, v1::LogitsTensor* logits) const;
  v1::OpenSequence Opening(const std::string& id, uint64_t epoch, bool has_history) const;
  // Adds the logits of a part, and lets the row refer to them.
  void AddPart(Part part, bool is_plain, Request* request, v1::StepRow* row);
  void AddLogits(Part part, uint32_t positions, bool is_plain, Request* request);
  // Adds the tokens and logits of all compact rows. Returns the row that refers to them.
  v1::CompactRow AddPairs(Part part, Request* request) const;
  v1::RowMask Mask() const;
  std::string MaskBytes() const { return std::string(uint64_t{(vocabulary_ + 31) / 32} * 4, '\xff'); }
  // Sets a row's task and the options of a step.
  void FillRow(v1::StepRow* row, Request* request) const;
  void Rewrite(v1::StepRow* row) const;
  void FillScore(v1::Score* score) const;
  template <typename Verify>
  void FillVerify(const v1::RowMask& mask, Verify* verify, Request* request) const;
  int32_t ParentOf(uint32_t draft) const;
  uint32_t CountDistributions() const;

  const Scenario& scenario_;
  v1::SamplingParameters parameters_;
  uint32_t vocabulary_ = 1;
  uint32_t live_ = 1;
  uint32_t drafts_ = 1;
  uint32_t positions_ = 1;
  uint32_t rows_ = 1;
  uint32_t shards_ = 1;
  uint32_t position_ = 0;
  uint64_t hash_ = 0;
  uint64_t step_id_ = 1;
  std::vector<std::string> checkpoints_;  // by row
  std::shared_ptr<service::MemoryConnection> connection_;
  std::optional<testing::ClientRegion> region_;
};

}  // namespace sortition::costs
