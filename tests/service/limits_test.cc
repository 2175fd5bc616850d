// Limits are published whole: every one an operator can set, and every one that is fixed.
#include "service/limits.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sortition::service {
namespace {

std::map<std::string, uint64_t> Described(const Limits& limits) {
  std::map<std::string, uint64_t> described;
  for (const LimitDescription& limit : DescribeLimits(limits)) {
    EXPECT_TRUE(described.try_emplace(std::string(limit.name), limit.value).second) << limit.name << " twice";
    EXPECT_FALSE(limit.description.empty()) << limit.name;
  }
  return described;
}

// Changes each field alone and expects only the description of its name to change: no field is left out, and none
// stands for another.
TEST(Limits, EachLimitIsDescribed) {
  struct Change {
    const char* name;
    void (*change)(Limits&);
    uint64_t value;
  };
  const Change changes[] = {
      {"max_message_bytes", [](Limits& l) { l.max_message_bytes = 7; }, 7},
      {"max_streams", [](Limits& l) { l.max_streams = 7; }, 7},
      {"stream_unanswered_bytes", [](Limits& l) { l.stream_unanswered_bytes = 7; }, 7},
      {"stream_unanswered_rows", [](Limits& l) { l.stream_unanswered_rows = 7; }, 7},
      {"stream_sequences", [](Limits& l) { l.stream_sequences = 7; }, 7},
      {"stalled_write", [](Limits& l) { l.stalled_write = absl::Seconds(7); }, 7000},
      {"max_stream_age", [](Limits& l) { l.max_stream_age = absl::Seconds(7); }, 7000},
      {"max_step_positions", [](Limits& l) { l.max_step_positions = 7; }, 7},
      {"max_queued_rows", [](Limits& l) { l.max_queued_rows = 7; }, 7},
      {"max_queue_time", [](Limits& l) { l.max_queue_time = absl::Seconds(7); }, 7000},
      {"max_vocabulary", [](Limits& l) { l.max_vocabulary = 7; }, 7},
      {"max_compact_tokens", [](Limits& l) { l.max_compact_tokens = 7; }, 7},
      {"max_compact_bytes", [](Limits& l) { l.max_compact_bytes = 7; }, 7},
      {"stream_masks", [](Limits& l) { l.stream_masks = 7; }, 7},
      {"stream_mask_bytes", [](Limits& l) { l.stream_mask_bytes = 7; }, 7},
      {"max_mask_bytes", [](Limits& l) { l.max_mask_bytes = 7; }, 7},
      {"shard_wait", [](Limits& l) { l.shard_wait = absl::Seconds(7); }, 7000},
      {"ready_wait", [](Limits& l) { l.ready_wait = absl::Seconds(7); }, 7000},
      {"max_unready_steps", [](Limits& l) { l.max_unready_steps = 7; }, 7},
      {"max_shard_answer_bytes", [](Limits& l) { l.max_shard_answer_bytes = 7; }, 7},
      {"max_memory_connections", [](Limits& l) { l.max_memory_connections = 7; }, 7},
      {"max_rings", [](Limits& l) { l.max_rings = 7; }, 7},
      {"max_memory_bytes", [](Limits& l) { l.max_memory_bytes = 7; }, 7},
      {"connection_memory_bytes", [](Limits& l) { l.connection_memory_bytes = 7; }, 7},
      {"connection_device_bytes", [](Limits& l) { l.connection_device_bytes = 7; }, 7},
      {"connection_regions", [](Limits& l) { l.connection_regions = 7; }, 7},
      {"max_sequences", [](Limits& l) { l.max_sequences = 7; }, 7},
      {"max_state_bytes", [](Limits& l) { l.max_state_bytes = 7; }, 7},
      {"sequence_ttl", [](Limits& l) { l.sequence_ttl = absl::Seconds(7); }, 7000},
      {"max_history", [](Limits& l) { l.max_history = 7; }, 7},
      {"kept_history", [](Limits& l) { l.kept_history = 7; }, 7},
      {"max_listed_tokens", [](Limits& l) { l.max_listed_tokens = 7; }, 7},
  };
  const std::map<std::string, uint64_t> defaults = Described(Limits());
  for (const Change& change : changes) {
    Limits limits;
    change.change(limits);
    std::map<std::string, uint64_t> expected = defaults;
    ASSERT_TRUE(expected.contains(change.name)) << change.name;
    expected[change.name] = change.value;
    EXPECT_EQ(Described(limits), expected) << change.name;
  }
}

TEST(Limits, FixedLimitsAreDescribed) {
  const std::map<std::string, uint64_t> described = Described(Limits());
  EXPECT_EQ(described.at("max_name_bytes"), kMaxNameBytes);
  EXPECT_EQ(described.at("max_trace_state_bytes"), kMaxTraceStateBytes);
  EXPECT_EQ(described.at("max_choice_index"), kMaxChoiceIndex);
  EXPECT_EQ(described.at("max_draw_salt"), kMaxDrawSalt);
  EXPECT_EQ(described.at("max_priority"), uint64_t{kMaxPriority});
  EXPECT_EQ(described.at("max_message_parts"), kMaxMessageParts);
  EXPECT_EQ(described.at("max_payloads"), kMaxPayloads);
  EXPECT_EQ(described.at("max_shards"), kMaxShards);
}

}  // namespace
}  // namespace sortition::service
