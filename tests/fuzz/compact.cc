// Compact rows: stated from a row of the input's bytes, they give its answer or are refused; damaged ones are found
// unsound, or do no harm but to their own answer.
#include "kernels/law/compact.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/cpu/compact/state_row.h"
#include "kernels/law/reference.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/row.h"

namespace sortition::fuzz {
namespace {

std::vector<uint32_t> SomeTokens(uint32_t seed, uint32_t vocabulary) {
  std::vector<uint32_t> tokens;
  const uint32_t step = 1 + seed % 40;
  for (uint32_t id = seed / 40 % 40; id < vocabulary; id += step) tokens.push_back(id);
  return tokens;
}

void Damage(uint32_t word, kernels::StatedRow* row) {
  const auto change = [&](std::vector<kernels::TokenBits>* tokens) {
    if (tokens->empty()) return;
    kernels::TokenBits& token = (*tokens)[word / 16 % tokens->size()];
    (word & 8 ? token.token : token.bits) ^= 1u << (word / 4096 % 32);
  };
  switch (word % 8) {
    case 0:
      return change(&row->first);
    case 1:
      return change(&row->others);
    case 2:
      row->is_whole = !row->is_whole;
      return;
    case 3:
      row->sum = uint64_t{word} << (word / 256 % 32);
      return;
    case 4:
      row->unit_sum = uint64_t{word} << (word / 256 % 32);
      return;
    case 5:
      if (!row->first.empty()) row->first.pop_back();
      return;
    default:
      std::swap(row->first, row->others);
  }
}

// Decides by the reference and by the processor's kernels, which have to agree.
kernels::cpu::Decision Decide(const kernels::RowRequest& request, const kernels::CompactRow& row,
                              kernels::cpu::Scratch* scratch) {
  auto decided = law::SampleCompactRowReference(request, row);
  if (kernels::cpu::DecideRow(request, row, /*may_raise=*/true, scratch) != decided) {
    Fail("the processor decides otherwise");
  }
  return decided;
}

}  // namespace

void Run(Bytes bytes) {
  static kernels::cpu::Scratch& scratch = *new kernels::cpu::Scratch;
  Input input(bytes);
  const uint32_t wanted = input.Word();
  const uint32_t damage = input.OneIn(4) ? input.Word() : 0;
  const Row row(&input);
  const kernels::RowRequest& request = row.request();
  const uint32_t live = request.live_vocabulary;
  const uint32_t count = 1 + wanted % (wanted & 0x80000000u ? live + 1 : std::min(live, 20u));
  const std::vector<uint32_t> named = SomeTokens(wanted / 64, live);
  const auto expected = law::StateRowReference(request, count, named);
  kernels::StatedRow stated;
  const bool is_stated = kernels::cpu::StateRow(request, {count, named, true, true}, &scratch, &stated);
  if (is_stated != expected.has_value() || (is_stated && stated != *expected)) Fail("the processor states another row");
  if (!is_stated) return;
  if (damage != 0) {
    Damage(damage, &stated);
    // Any other row is decided or refused, with any token.
    if (!law::FindUnsound(*request.parameters, live, stated.row())) Decide(request, stated.row(), &scratch);
    return;
  }
  if (const auto unsound = law::FindUnsound(*request.parameters, live, stated.row())) {
    Fail(absl::StrCat("a true row is unsound: token ", unsound->index, " ", std::string(unsound->why)));
  }
  // Planted defect: a row that says that it is whole, and is not.
  if (planted && !stated.is_whole) {
    stated.is_whole = true;
    stated.others.clear();
  }
  const auto decided = Decide(request, stated.row(), &scratch);
  const auto* const output = std::get_if<kernels::RowOutput>(&decided);
  if (output == nullptr) return;
  const kernels::RowOutput whole = law::SampleRowReference(request);
  if (*output != whole) Fail(absl::StrCat("the compact row gives token ", output->token, ", the row ", whole.token));
}

}  // namespace sortition::fuzz
