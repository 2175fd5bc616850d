// The index of contexts against a search of the whole history.
#include "service/text/history/context_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "service/text/history/shared_contexts.h"
#include "tests/support/scale.h"

namespace sortition::service::context_index_test {
namespace {

using Found = ContextIndex::Found;

// Maps each token to the longest context of `least` to `depth` tokens that it followed at a position of [first, end).
std::map<uint32_t, uint32_t> Searched(const std::vector<uint32_t>& tokens, uint32_t first, uint32_t end, uint32_t least,
                                      uint32_t depth) {
  std::map<uint32_t, uint32_t> longest;
  for (uint32_t at = first; at < end; ++at) {
    uint32_t length = 0;
    while (length < depth && tokens[at - 1 - length] == tokens[end - 1 - length]) ++length;
    if (length >= least) longest[tokens[at]] = std::max(longest[tokens[at]], length);
  }
  return longest;
}

std::map<uint32_t, uint32_t> Longest(const ContextIndex::AllFound& found) {
  std::map<uint32_t, uint32_t> longest;
  for (const Found& one : found) longest[one.token] = std::max(longest[one.token], one.length);
  return longest;
}

struct Shape {
  uint32_t least;
  uint32_t depth;
  uint32_t alphabet;
  uint32_t window;  // in positions; 0 = none
};

class ContextIndexTest : public ::testing::TestWithParam<Shape> {};

// Histories grow, are cut, and leave the window, token by token.
TEST_P(ContextIndexTest, EqualsPlainSearch) {
  const Shape shape = GetParam();
  std::mt19937 random(1);
  ContextIndex index(shape.least, shape.depth);
  TokenLog log;
  std::vector<uint32_t> tokens;
  const auto start = [&](size_t length) {
    return shape.window != 0 && length > shape.window ? static_cast<uint32_t>(length - shape.window) : 0;
  };
  const auto push = [&](uint32_t token) {
    log.Push(token);
    tokens.push_back(token);
    const uint32_t length = log.length();
    if (start(length) > start(length - 1) && start(length) + shape.depth < length) index.RemoveOldest(log);
    if (length > start(length) + shape.depth) index.AddNewest(log, length - 1);
  };
  const auto pop = [&] {
    const uint32_t length = log.length();
    if (length > start(length) + shape.depth) index.RemoveNewest(log);
    if (start(length) > start(length - 1) && start(length) + shape.depth < length) {
      index.AddOldest(log, start(length - 1) + shape.depth);
    }
    tokens.pop_back();
    log.Truncate(length - 1);
  };
  uint64_t matches = 0;
  // Matches grow with the square of the steps; fewer than 100 steps would find none.
  const uint64_t steps = std::max<uint64_t>(sortition::testing::Scaled(3000), 100);
  for (uint64_t step = 0; step < steps; ++step) {
    const uint32_t kind = random() % 10;
    if (kind == 0) {
      for (uint32_t i = random() % std::min<size_t>(tokens.size() + 1, 40); i > 0; --i) pop();
    } else if (kind == 1 && tokens.size() > 20) {  // repeats a passage
      const size_t from = random() % (tokens.size() - 10);
      for (size_t i = 0; i < 10; ++i) push(tokens[from + i]);
    } else {
      push(random() % shape.alphabet);
    }
    if (tokens.size() < shape.depth) continue;
    ContextIndex::AllFound found;
    index.Find(log, log.length(), &found);
    const uint32_t length = log.length();
    const auto searched = Searched(tokens, start(length) + shape.depth, length, shape.least, shape.depth);
    ASSERT_EQ(Longest(found), searched) << "step " << step;
    matches += searched.size();
  }
  EXPECT_GT(matches, 500 * steps * steps / (3000 * 3000));
  // Removal leaves nothing behind.
  while (!tokens.empty()) pop();
  EXPECT_TRUE(index.empty());
}

INSTANTIATE_TEST_SUITE_P(Shapes, ContextIndexTest,
                         ::testing::Values(Shape{1, 8, 3, 0}, Shape{2, 24, 10, 0}, Shape{3, 3, 5, 0},
                                           Shape{0, 0, 50, 0}, Shape{1, 8, 3, 100}, Shape{2, 24, 4, 60},
                                           Shape{1, 24, 2, 25}, Shape{1, 1, 20, 7}));

// A history that repeats one token gives the deepest trie for its length.
TEST(ContextIndex, MemoryIsLinearInPositions) {
  for (const uint32_t alphabet : {1u, 2u, 1000u}) {
    ContextIndex index(2, 24);
    TokenLog log;
    std::mt19937 random(2);
    for (uint32_t i = 0; i < 50'000; ++i) {
      log.Push(random() % alphabet);
      if (i >= 24) index.AddNewest(log, i);
    }
    EXPECT_LT(index.bytes() / 50'000, 300u) << alphabet;
  }
}

// A family of texts that grow by hundreds of tokens, are cut and forked at any position, and share their layers.
TEST(SharedContexts, ForksEqualPlainSearch) {
  struct Text {
    SharedContexts index;
    TokenLog log;
    std::vector<uint32_t> tokens;
  };
  for (const Shape shape : {Shape{2, 8, 6, 0}, Shape{2, 2, 20, 0}, Shape{0, 0, 3000, 0}}) {
    std::mt19937 random(3);
    std::vector<Text> family = {{SharedContexts(shape.least, shape.depth), {}, {}}};
    const auto push = [&](Text* text, bool ahead) {
      text->tokens.push_back(random() % shape.alphabet);
      text->log.Push(text->tokens.back());
      if (!ahead) text->index.Pushed(text->log);
    };
    const auto pop = [&](Text* text) {
      text->index.Popping(text->log, text->log.length());
      text->log.Truncate(text->log.length() - 1);
      text->tokens.pop_back();
    };
    const auto check = [&](const Text& text) {
      if (text.tokens.size() < shape.depth) return;
      ContextIndex::AllFound found;
      text.index.Find(text.log, &found);
      const auto searched = Searched(text.tokens, shape.depth, text.log.length(), shape.least, shape.depth);
      ASSERT_EQ(Longest(found), searched);
      ASSERT_EQ(text.index.Finds(text.log), !searched.empty());
    };
    for (int round = 0; round < 100; ++round) {
      Text& text = family[random() % family.size()];
      for (uint32_t count = random() % (round % 5 == 0 ? 3000 : 700); count > 0; --count) push(&text, false);
      const auto length = static_cast<uint32_t>(text.tokens.size());
      for (uint32_t count = random() % std::min(length + 1, 900u); round % 3 == 0 && count > 0; --count) pop(&text);
      if (family.size() < 12) {
        const auto left = static_cast<uint32_t>(text.tokens.size());
        const uint32_t at = round % 2 == 0 ? left : random() % (left + 1);
        Text fork{text.index.Fork(text.log, at), text.log, text.tokens};
        fork.log.Truncate(at);
        fork.tokens.resize(at);
        family.push_back(std::move(fork));
      } else if (round % 10 == 0) {
        family.erase(family.begin());
      }
      for (Text& one : family) {
        ASSERT_NO_FATAL_FAILURE(check(one)) << "round " << round;
        for (int ahead = 0; ahead < 9; ++ahead) push(&one, true);
        ASSERT_NO_FATAL_FAILURE(check(one)) << "ahead in round " << round;
        for (int ahead = 0; ahead < 9; ++ahead) pop(&one);
      }
    }
  }
}

}  // namespace
}  // namespace sortition::service::context_index_test
