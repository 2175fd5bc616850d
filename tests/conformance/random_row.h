// Random rows and options for comparing a kernel with the reference: every shape of logits, every option, every edge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/law/parameters.h"
#include "kernels/row.h"
#include "tests/conformance/random_words.h"

namespace sortition::kernels {

// Which samplers rows have: those that need no chain, or any, in any order.
enum class OptionsKind { kPlain, kChained };

// A row with all data of its request. A pure function of its arguments, so a failure's arguments make it again. Not
// copyable: `request` points into it.
class RandomRow {
 public:
  RandomRow(uint64_t seed, uint32_t vocabulary, OptionsKind options = OptionsKind::kPlain);
  RandomRow(const RandomRow&) = delete;
  RandomRow& operator=(const RandomRow&) = delete;

  // Asks for more than a token and its logprobs: a score or a verification in its place, logprobs by name, the entropy,
  // the kept set. The row is otherwise the same.
  void AskForMore();

  // Requests the tempered distribution, the kept mass and, for a score, the place in the race. The row is otherwise the
  // same.
  void AskForRecord();

  // Makes half of the verifications a block's.
  void AskForBlock();

  // Adds drafts to half of the verifications against a drafter's probabilities that belong to no block.
  void AskForRounds();

  // Makes top-n-sigma the first filter, before others or alone. Not of a row that has a chain.
  void FilterBySigmaFirst();

  // Lets the filters of a chain keep a number of tokens at least.
  void KeepAtLeast();

  const RowRequest& request() const { return request_; }
  const std::vector<std::byte>& tensor() const { return tensor_; }
  const std::string& description() const { return description_; }

 private:
  void MakeLogits();
  void MakeOptions(OptionsKind which);
  // Adds the samplers whose stages options do not decide alone.
  void MakeChain(uint32_t rarity, law::SamplingParameters* options);
  uint32_t Number(std::string_view option);
  template <typename Value, size_t kSize>
  Value OneOf(const Value (&values)[kSize]) {
    return values[Below(kSize)];
  }
  void MakeEdits();
  void MakeMasks();
  void MakeDraft();
  float Logit(int shape);
  void Store(uint32_t id, float logit);
  uint32_t Below(uint32_t end) { return uint32_t(random_() % end); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  // The token that the row would draw there; nothing if it is refused.
  std::optional<uint32_t> DrawnAt(uint32_t position) const;
  // Distinct ids, ascending.
  std::vector<uint32_t> Tokens(uint32_t count);

  RandomWords random_;
  uint32_t vocabulary_;
  DType dtype_;
  std::vector<std::byte> tensor_;
  RowParameters parameters_;
  std::vector<LogitEdit> edits_;
  std::vector<uint32_t> allowed_tokens_;
  std::vector<uint32_t> allowed_bits_;
  std::vector<std::byte> dense_draft_;
  std::vector<uint32_t> sparse_draft_tokens_;
  std::vector<uint32_t> sparse_draft_bits_;
  std::vector<uint32_t> requested_;
  std::vector<uint32_t> rivals_;
  RowRequest request_;
  std::string description_;
};

}  // namespace sortition::kernels
