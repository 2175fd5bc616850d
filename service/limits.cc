// Descriptions of the limits.
#include "service/limits.h"

namespace sortition::service {

std::vector<LimitDescription> DescribeLimits(const Limits& limits) {
  const auto milliseconds = [](absl::Duration duration) {
    return static_cast<uint64_t>(absl::ToInt64Milliseconds(duration));
  };
  return {
      {"max_message_bytes", limits.max_message_bytes, "bytes", "one message of a stream, payloads included"},
      {"max_streams", limits.max_streams, "streams", "open at once"},
      {"stream_unanswered_bytes", limits.stream_unanswered_bytes, "bytes", "a stream with more unanswered is not read"},
      {"stream_unanswered_rows", limits.stream_unanswered_rows, "rows", "a stream with more unanswered is not read"},
      {"stream_sequences", limits.stream_sequences, "sequences", "open on one stream"},
      {"stalled_write", milliseconds(limits.stalled_write), "milliseconds",
       "a worker that reads nothing for this long loses its stream"},
      {"max_stream_age", milliseconds(limits.max_stream_age), "milliseconds",
       "a worker is asked to reopen its stream after this; 0 = never"},
      {"max_step_rows", limits.max_step_rows, "rows", "of one step"},
      {"max_queued_rows", limits.max_queued_rows, "rows", "waiting for a device, all streams together"},
      {"max_queue_time", milliseconds(limits.max_queue_time), "milliseconds",
       "a step that would wait longer for a device is refused; 0 = no bound"},
      {"max_vocabulary", limits.max_vocabulary, "tokens", "width of a row"},
      {"stream_masks", limits.stream_masks, "masks", "uploaded on one stream"},
      {"stream_mask_bytes", limits.stream_mask_bytes, "bytes", "of the masks uploaded on one stream"},
      {"max_mask_bytes", limits.max_mask_bytes, "bytes", "of uploaded masks, all streams together"},
      {"shard_wait", milliseconds(limits.shard_wait), "milliseconds",
       "the longest wait of a step in shards for its last shard"},
      {"ready_wait", milliseconds(limits.ready_wait), "milliseconds",
       "the longest wait of a step sent early for its logits"},
      {"max_unready_steps", limits.max_unready_steps, "steps",
       "sent early, that wait for their logits, all streams together"},
      {"max_shard_answer_bytes", limits.max_shard_answer_bytes, "bytes",
       "answers of rows in shards, kept for ranks that lost theirs; beyond it the client with the most loses its own"},
      {"max_memory_connections", limits.max_memory_connections, "connections", "to the memory socket"},
      {"max_rings", limits.max_rings, "streams", "over rings in shared memory"},
      {"max_memory_bytes", limits.max_memory_bytes, "bytes", "of shared memory, all connections together"},
      {"connection_memory_bytes", limits.connection_memory_bytes, "bytes", "of shared memory of one connection"},
      {"connection_device_bytes", limits.connection_device_bytes, "bytes",
       "of devices' memory that one connection shares; 0 = none is accepted"},
      {"connection_regions", limits.connection_regions, "regions", "of shared memory of one connection"},
      {"max_clients", limits.max_clients, "clients", "identities with streams or shared memory at once"},
      {"client_streams", limits.client_streams, "streams", "of one client; 0 = no bound"},
      {"client_rows_per_second", limits.client_rows_per_second, "rows/second", "of one client; 0 = no bound"},
      {"client_bytes_per_second", limits.client_bytes_per_second, "bytes/second",
       "received from one client; 0 = no bound"},
      {"client_sequences", limits.client_sequences, "sequences",
       "with state, of one client; beyond it the client's idle ones are forgotten; 0 = no bound"},
      {"client_regions", limits.client_regions, "regions", "of memory shared with one client; 0 = no bound"},
      {"client_memory_bytes", limits.client_memory_bytes, "bytes", "of memory shared with one client; 0 = no bound"},
      {"max_sequences", limits.max_sequences, "sequences", "with state; beyond it idle ones are forgotten"},
      {"max_state_bytes", limits.max_state_bytes, "bytes",
       "of sequences: states, options, and histories and snapshots in transfer; beyond it idle sequences are "
       "forgotten"},
      {"sequence_ttl", milliseconds(limits.sequence_ttl), "milliseconds", "an idle sequence is forgotten after this"},
      {"replay_tokens_per_second", limits.replay_tokens_per_second, "tokens/second",
       "of histories longer than a few thousand tokens, all streams together; a quarter while rows wait for a device"},
      {"replay_guard", milliseconds(limits.replay_guard), "milliseconds",
       "a history that was sent is kept for its first step for this long"},
      {"max_history", limits.max_history, "tokens", "prompt and output of one sequence"},
      {"kept_history", limits.kept_history, "tokens", "back to which a sequence can be truncated without a replay"},
      {"max_listed_tokens", limits.max_listed_tokens, "tokens",
       "bias, allowed, banned, stop and forced entries of one sequence, bad words, sequence breakers; each"},
      {"max_name_bytes", kMaxNameBytes, "bytes", "request_id, worker_session, model, client"},
      {"max_trace_state_bytes", kMaxTraceStateBytes, "bytes", "trace.tracestate"},
      {"max_string_tokens", kMaxStringTokens, "tokens", "one bad word, sequence breaker or n-gram"},
      {"max_choice_index", kMaxChoiceIndex, "", "parallel completions of one prompt"},
      {"max_draw_salt", kMaxDrawSalt, "", "redraws at one position"},
      {"max_draft_tokens", kMaxDraftTokens, "tokens", "of one draft sequence or tree"},
      {"max_score_tokens", kMaxScoreTokens, "tokens", "that one row scores"},
      {"max_priority", kMaxPriority, "", "largest absolute value of a step's priority"},
      {"max_message_parts", kMaxMessageParts, "", "messages and strings within one message"},
      {"max_shards", kMaxShards, "", "shards of a row"},
      {"max_payloads", kMaxPayloads, "", "of one message"},
  };
}

}  // namespace sortition::service
