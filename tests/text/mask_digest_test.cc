// Masks are digested by the tokens that they let be drawn, and not by their form.
#include "service/text/mask_digest.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace sortition::service::mask_digest_test {
namespace {

std::vector<uint32_t> WordsOf(const std::set<uint32_t>& tokens, uint32_t vocabulary) {
  std::vector<uint32_t> words((vocabulary + 31) / 32);
  for (const uint32_t token : tokens) words[token / 32] |= 1u << token % 32;
  return words;
}

uint64_t DigestOf(PositionMask mask, const std::vector<uint32_t>& words, uint32_t live_vocabulary) {
  RowPlan plan;
  plan.masks.push_back(std::move(mask));
  return DigestMasks(plan, {RowMaskBits::Lent(words)}, live_vocabulary);
}

uint64_t DigestOfList(std::vector<uint32_t> allowed, std::vector<uint32_t> banned, uint32_t live_vocabulary) {
  PositionMask mask;
  mask.has_allowed_tokens = true;
  mask.allowed_tokens = std::move(allowed);
  mask.banned_tokens = std::move(banned);
  return DigestOf(std::move(mask), {}, live_vocabulary);
}

uint64_t DigestOfPacked(std::vector<uint32_t> words, std::vector<uint32_t> banned, uint32_t live_vocabulary) {
  PositionMask mask;
  mask.mask_row = 0;
  mask.banned_tokens = std::move(banned);
  return DigestOf(std::move(mask), words, live_vocabulary);
}

TEST(MaskDigest, IsOfTheSetAndNotOfItsForm) {
  std::mt19937 random(3);
  for (const uint32_t live : {1u, 2u, 31u, 32u, 33u, 64u, 65u, 1000u}) {
    std::map<uint64_t, std::set<uint32_t>> seen;
    for (int round = 0; round < 300; ++round) {
      // From no token to all of them, in runs of several lengths.
      const uint32_t share = random() % 9, run = 1 + random() % 40;
      std::set<uint32_t> allowed, others;
      for (uint32_t token = 0; token < live;) {
        const bool is_allowed = random() % 8 < share;
        for (const uint32_t end = token + run; token < std::min(end, live); ++token) {
          (is_allowed ? allowed : others).insert(token);
        }
      }
      const std::vector<uint32_t> list(allowed.begin(), allowed.end()), rest(others.begin(), others.end());
      const uint64_t digest = DigestOfList(list, {}, live);
      const auto [known, is_new] = seen.try_emplace(digest, allowed);
      EXPECT_EQ(known->second, allowed) << "two sets have one digest";
      EXPECT_EQ(digest == 0, others.empty());
      EXPECT_EQ(DigestOfList(list, rest, live), digest) << "bans of tokens that are not allowed";
      std::vector<uint32_t> words = WordsOf(allowed, live + 64);
      EXPECT_EQ(DigestOfPacked(words, {}, live), digest);
      EXPECT_EQ(DigestOfPacked(words, rest, live), digest);
      for (uint32_t token = live; token < live + 64; ++token) words[token / 32] |= 1u << token % 32;
      EXPECT_EQ(DigestOfPacked(words, {}, live), digest) << "bits behind the live vocabulary";
      EXPECT_EQ(DigestOfPacked(std::vector<uint32_t>(words.size(), ~0u), rest, live), digest);
      PositionMask bans;
      bans.banned_tokens = rest;
      EXPECT_EQ(DigestOf(bans, {}, live), digest) << "bans alone";
    }
  }
}

TEST(MaskDigest, OneMaskForAllPositionsEqualsAsManyOfThem) {
  RowPlan plan;
  plan.ahead = TokenTree::Chain({7, 8});
  PositionMask list;
  list.has_allowed_tokens = true;
  list.allowed_tokens = {5};
  const auto digest = [&](std::vector<PositionMask> masks) {
    plan.masks = std::move(masks);
    return DigestMasks(plan, std::vector<RowMaskBits>(plan.masks.size()), 100);
  };
  const uint64_t of_all = digest({list});
  EXPECT_EQ(digest({list, list, list}), of_all);
  EXPECT_NE(digest({list, list, {}}), of_all);
  EXPECT_NE(digest({list, {}, {}}), digest({{}, list, {}}));
  EXPECT_EQ(digest({{}, {}, {}}), 0u);
  EXPECT_EQ(digest({}), 0u);
}

}  // namespace
}  // namespace sortition::service::mask_digest_test
