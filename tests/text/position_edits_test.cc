// Lists that positions share, against lists made one by one.
#include "service/text/history/position_edits.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sortition::service::position_edits_test {
namespace {

using kernels::LogitEdit;
using List = PositionEdits::List;
using PlainList = std::map<uint32_t, LogitEdit>;

List RandomEdits(std::mt19937* random, uint32_t count) {
  PlainList edits;
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>((*random)() % end); };
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t token = below(60);
    edits[token] = {.token = token, .bias = below(3), .penalty = below(3)};
  }
  List sorted;
  for (const auto& [token, edit] : edits) sorted.push_back(edit);
  return sorted;
}

void Set(const List& over, PlainList* list) {
  for (const LogitEdit& edit : over) (*list)[edit.token] = edit;
}

// Compares the lists without edits that have no effect.
void ExpectEdits(const PositionEdits& edits, const PlainList& plain) {
  PlainList with_effect;
  const auto has_effect = [](const LogitEdit& edit) { return edit != LogitEdit{.token = edit.token}; };
  for (const LogitEdit& edit : *edits) {
    ASSERT_TRUE(with_effect.empty() || with_effect.rbegin()->first < edit.token);
    if (has_effect(edit)) with_effect[edit.token] = edit;
  }
  PlainList expected;
  for (const auto& [token, edit] : plain) {
    if (has_effect(edit)) expected[token] = edit;
  }
  ASSERT_EQ(with_effect, expected);
}

TEST(PositionEdits, EqualListsMadeOneByOne) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const auto all = std::make_shared<const List>(RandomEdits(&random, random() % 40));
    PositionEdits first(all);
    first.Share();
    std::vector<PositionEdits> positions;
    std::vector<PlainList> plain;
    for (int i = 0; i < 6; ++i) {
      const List changed = RandomEdits(&random, random() % 4);
      Set(*all, &plain.emplace_back());
      Set(changed, &plain.back());
      positions.push_back(first.With(changed));
      if (i % 3 != 0) continue;
      std::vector<uint32_t> banned;
      for (uint32_t token = random() % 20; token < 60; token += 1 + random() % 20) banned.push_back(token);
      for (const uint32_t token : banned) {
        LogitEdit& edit = plain.back()[token];
        edit.token = token;
        edit.flags |= LogitEdit::kBanned;
      }
      positions.back() = positions.back().WithBans(banned);
    }
    for (int ask = 0; ask < 20; ++ask) {
      const size_t at = random() % positions.size();
      ASSERT_NO_FATAL_FAILURE(ExpectEdits(positions[at], plain[at])) << "round " << round;
    }
    for (size_t i = 0; i < positions.size(); ++i) positions[i].Keep(i > 0 ? &positions[i - 1] : nullptr);
    std::vector<std::span<const LogitEdit>> kept(positions.begin(), positions.end());
    for (size_t i = 0; i < positions.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(ExpectEdits(positions[i], plain[i]));
      ASSERT_EQ(kept[i].data(), (*positions[i]).data()) << "a kept list moves";
    }
    ASSERT_EQ(*first, *all);
  }
}

// 65,536 biases, and a mask that bans a token at each of 64 positions, which a compact row asks for in turn.
TEST(PositionEdits, PositionsInTurnShareMemory) {
  List biases;
  for (uint32_t token = 0; token < 65'536; ++token) biases.push_back({.token = 2 * token, .bias = 1});
  PositionEdits first(std::make_shared<const List>(biases));
  first.Share();
  std::vector<PositionEdits> positions;
  for (uint32_t i = 0; i < 64; ++i) positions.push_back(first.WithBans(std::vector<uint32_t>{i}));
  const LogitEdit* const memory = (*positions[0]).data();
  for (const PositionEdits& position : positions) EXPECT_EQ((*position).data(), memory);
  // At once, positions with equal bans share theirs.
  PositionEdits one = first.WithBans(std::vector<uint32_t>{7}), other = first.WithBans(std::vector<uint32_t>{7});
  one.Keep(nullptr);
  other.Keep(&one);
  EXPECT_EQ((*one).data(), (*other).data());
}

}  // namespace
}  // namespace sortition::service::position_edits_test
