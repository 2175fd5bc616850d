// Groups that are copied when they are first looked at, and have changed by then.
#include "kernels/cpu/lazy_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/target.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu::lazy_copy_test {
namespace {

constexpr uint32_t kVocabulary = 70 * law::kGroupSize + 3;
constexpr uint32_t kGroup = 5;
constexpr uint32_t kFirst = kGroup * law::kGroupSize;  // its first token
constexpr uint32_t kSmall = 17;                        // from there, not the largest

float LogitOf(uint32_t id) { return id == kFirst + kSmall ? -9 : float(int(id * 7919 % 61) - 30) / 4; }

// A row of small numbers that all types have.
class SentRow {
 public:
  explicit SentRow(DType dtype) : dtype_(dtype), bytes_(kVocabulary * ElementBytes(dtype)) {
    for (uint32_t id = 0; id < kVocabulary; ++id) Set(id, LogitOf(id));
  }

  void Set(uint32_t token, float logit) { SetBits(token, law::Narrow(dtype_, std::bit_cast<uint32_t>(logit))); }
  void SetBits(uint32_t token, uint32_t element) {
    std::memcpy(bytes_.data() + token * ElementBytes(dtype_), &element, ElementBytes(dtype_));
  }
  void SetNan(uint32_t token, bool is_negative) {
    const uint32_t nan = dtype_ == DType::kF32 ? 0x7fc00000u : dtype_ == DType::kF16 ? 0x7e00u : 0x7fc0u;
    SetBits(token, nan | uint32_t{is_negative} << (8 * ElementBytes(dtype_) - 1));
  }
  ByteSegment segment() const { return {bytes_.data(), bytes_.size()}; }
  size_t bytes() const { return bytes_.size(); }

 private:
  const DType dtype_;
  std::vector<std::byte> bytes_;
};

// Reads a row lazily, changes it, and lists a group's tokens.
class LazyCopyTest : public ::testing::Test {
 protected:
  // Calls check(sent row, list); list() returns the group's live tokens, whether the copy has failed, and the largest
  // key that was read of the group.
  template <typename Check>
  void OnAll(Check check) {
    for (const Target* target : RunnableTargets()) {
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        SCOPED_TRACE(::testing::Message() << target->name << ", type " << int(dtype));
        SentRow sent(dtype);
        std::vector<std::byte> room(sent.bytes() + 64);
        RowRequest request;
        request.dtype = dtype;
        request.live_vocabulary = kVocabulary;
        request.logits = room.data();
        const ByteSegment segment = sent.segment();
        Scratch scratch;
        RowView row = LayRow(request, {{&segment, 1}, room.data()}, &scratch);
        LazyCopy lazy = CopyLazily(&scratch, row);
        row.lazy = &lazy;
        RowOutput answer;
        ASSERT_TRUE(ReadRow(target->kernels, request, &scratch, &row, &answer));
        check(&sent, [&] {
          std::vector<Candidate> found(law::kGroupSize + Array<Candidate>::kPadding);
          const uint32_t count = target->kernels.CollectTokens(row, &kGroup, 1, 1, kNoCeiling, found.data());
          found.resize(count);
          return Listed{found, lazy.has_failed, row.maxima[kGroup]};
        });
      }
    }
  }

  struct Listed {
    std::vector<Candidate> tokens;
    bool has_failed;
    uint32_t key;
  };

  static void ExpectReplaced(const Listed& listed) {
    EXPECT_TRUE(listed.has_failed);
    ASSERT_EQ(listed.tokens.size(), 1u);
    EXPECT_EQ(listed.tokens[0].key(), listed.key);
  }
};

TEST_F(LazyCopyTest, UnchangedGroupIsAsItWasSent) {
  OnAll([](SentRow*, auto list) {
    const Listed listed = list();
    EXPECT_FALSE(listed.has_failed);
    EXPECT_EQ(listed.tokens.size(), law::kGroupSize);
    EXPECT_EQ(std::ranges::max_element(listed.tokens)->key(), listed.key);
  });
}

TEST_F(LazyCopyTest, LargerTokenFails) {
  OnAll([](SentRow* sent, auto list) {
    sent->Set(kFirst + 9, 100);
    ExpectReplaced(list());
  });
}

TEST_F(LazyCopyTest, SmallerGroupFails) {
  OnAll([](SentRow* sent, auto list) {
    for (uint32_t i = 0; i < law::kGroupSize; ++i) sent->Set(kFirst + i, -20);
    ExpectReplaced(list());
  });
}

TEST_F(LazyCopyTest, NansFail) {
  for (const bool is_negative : {false, true}) {
    OnAll([&](SentRow* sent, auto list) {
      sent->SetNan(kFirst + kSmall, is_negative);
      ExpectReplaced(list());
    });
  }
}

TEST_F(LazyCopyTest, SmallerTokensMayChange) {
  OnAll([](SentRow* sent, auto list) {
    sent->Set(kFirst + kSmall, -25);
    const Listed listed = list();
    EXPECT_FALSE(listed.has_failed);
    EXPECT_EQ(listed.tokens.size(), law::kGroupSize);
    EXPECT_EQ(std::ranges::max_element(listed.tokens)->key(), listed.key);
  });
}

TEST_F(LazyCopyTest, GroupIsReadOnce) {
  OnAll([](SentRow* sent, auto list) {
    const Listed before = list();
    sent->Set(kFirst + 9, 100);
    const Listed after = list();
    EXPECT_EQ(after.tokens, before.tokens);
    EXPECT_FALSE(after.has_failed);
  });
}

// A group with negative keys alone, and one without a live token, are replaced like others.
TEST_F(LazyCopyTest, ReplacesNegativeAndMaskedGroups) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const float logit : {-3.5f, -0x1p-14f, 0x1p-14f, 65000.0f, 0.0f}) {
      std::vector<std::byte> room(law::kGroupSize * ElementBytes(dtype));
      LazyCopy lazy({}, nullptr);
      const uint32_t element = law::Narrow(dtype, std::bit_cast<uint32_t>(logit));
      const uint32_t key = law::Key(law::Canonical(law::Widen(dtype, element)));
      ReplaceChanged(dtype, key, room.data(), &lazy);
      uint32_t written = 0;
      std::memcpy(&written, room.data(), ElementBytes(dtype));
      EXPECT_EQ(law::Key(law::Canonical(law::Widen(dtype, written))), key) << logit;
      EXPECT_TRUE(lazy.has_failed);
      ReplaceChanged(dtype, 0, room.data(), &lazy);
      std::memcpy(&written, room.data(), ElementBytes(dtype));
      EXPECT_EQ(law::Key(law::Canonical(law::Widen(dtype, written))), 0u);
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::lazy_copy_test
