// The flags for tuning and tests: --help leaves them out, --helpmatch=tuning_flags lists them.
#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "service/process/flags.h"

using sortition::server::Config;
using sortition::service::Limits;
using sortition::service::RoutePolicy;

ABSL_FLAG(std::string, port_file, "", "File to write the port of the first TCP listener to, once the server serves");
ABSL_FLAG(RoutePolicy, route, Config().route,
          "Choice of a batch's device: auto (the one expected to finish first) or pinned:DEVICE");
ABSL_FLAG(std::string, cpu_target, Config().cpu_target,
          "Instruction set of the cpu device: auto, avx512, avx2, sse4, neon or scalar; all give the same answers");
ABSL_FLAG(std::string, vulkan_cache, Config().vulkan_cache,
          "Folder that keeps the shaders that Vulkan drivers have compiled, for a quick next start; empty = only the "
          "driver's "
          "own cache");
ABSL_FLAG(absl::Duration, tls_refresh, Config().tls_refresh,
          "Period in which the files of certificates and keys are looked at, in whole seconds");
ABSL_FLAG(uint64_t, receipt_file_bytes, Config().receipts.file_bytes, "A file of receipts that has as many bytes ends");
ABSL_FLAG(uint64_t, receipt_queue_bytes, Config().receipts.queue_bytes,
          "Bytes of receipts that wait to be written; beyond it they are lost");
ABSL_FLAG(uint32_t, stream_threads, Config().stream_threads, "Threads that read and write streams");
ABSL_FLAG(uint32_t, max_watchers, Limits().max_watchers,
          "Concurrent calls of each method that watches: WatchCounters, StreamCoreMetrics");
ABSL_FLAG(uint64_t, max_message_bytes, Limits().max_message_bytes,
          "Bytes of one message of a stream, payloads included");
ABSL_FLAG(uint64_t, stream_unanswered_bytes, Limits().stream_unanswered_bytes,
          "A stream with more unanswered bytes is not read until answers have left");
ABSL_FLAG(uint32_t, stream_unanswered_rows, Limits().stream_unanswered_rows,
          "A stream with more unanswered rows is not read until answers have left");
ABSL_FLAG(uint32_t, stream_sequences, Limits().stream_sequences, "Sequences open on one stream");
ABSL_FLAG(absl::Duration, stalled_write, Limits().stalled_write,
          "A worker that reads nothing for this long loses its stream");
ABSL_FLAG(uint32_t, max_step_positions, Limits().max_step_positions,
          "Positions of one step: a draw has one, a score or draft row several");
ABSL_FLAG(uint32_t, max_queued_rows, Limits().max_queued_rows,
          "Positions that wait for a device, each one row there; all streams together");
ABSL_FLAG(uint32_t, max_vocabulary, Limits().max_vocabulary, "Tokens of one row");
ABSL_FLAG(uint32_t, max_compact_tokens, Limits().max_compact_tokens, "Tokens that one compact row lists");
ABSL_FLAG(uint64_t, max_compact_bytes, Limits().max_compact_bytes, "Bytes that a step's compact rows list together");
ABSL_FLAG(uint32_t, stream_masks, Limits().stream_masks, "Masks uploaded on one stream");
ABSL_FLAG(uint64_t, stream_mask_bytes, Limits().stream_mask_bytes, "Bytes of the masks uploaded on one stream");
ABSL_FLAG(uint64_t, max_mask_bytes, Limits().max_mask_bytes, "Bytes of uploaded masks, all streams together");
ABSL_FLAG(absl::Duration, shard_wait, Limits().shard_wait,
          "The longest wait of a step in shards of the vocabulary for its last shard");
ABSL_FLAG(absl::Duration, ready_wait, Limits().ready_wait,
          "The longest wait of a step that was sent before its logits were complete");
ABSL_FLAG(uint32_t, max_unready_steps, Limits().max_unready_steps,
          "Steps that wait for their logits, all streams together");
ABSL_FLAG(
    uint64_t, max_shard_answer_bytes, Limits().max_shard_answer_bytes,
    "Bytes of answers of rows in shards, kept for ranks that lost theirs; beyond it the client with the most loses "
    "its own");
ABSL_FLAG(uint32_t, max_memory_connections, Limits().max_memory_connections, "Connections to the memory socket");
ABSL_FLAG(uint32_t, max_rings, Limits().max_rings, "Streams over rings in shared memory; each takes a thread");
ABSL_FLAG(
    absl::Duration, ring_spin, Config().ring_spin,
    "The longest time that a ring's thread looks for the next request before it sleeps, if requests come that soon; "
    "0 = it always sleeps");
ABSL_FLAG(uint64_t, connection_memory_bytes, Limits().connection_memory_bytes,
          "Bytes of shared memory of one connection to the memory socket");
ABSL_FLAG(uint32_t, connection_regions, Limits().connection_regions,
          "Regions of shared memory of one connection to the memory socket");
ABSL_FLAG(uint32_t, max_clients, Limits().max_clients, "Identities with streams or shared memory at once");
ABSL_FLAG(uint64_t, client_bytes_per_second, Limits().client_bytes_per_second,
          "Bytes that one client may send in a second, on average; 0 = no bound");
ABSL_FLAG(uint32_t, client_sequences, Limits().client_sequences,
          "Sequences with state of one client; beyond it the client's idle ones are forgotten; 0 = no bound");
ABSL_FLAG(uint32_t, client_regions, Limits().client_regions, "Regions of memory shared with one client; 0 = no bound");
ABSL_FLAG(uint64_t, client_memory_bytes, Limits().client_memory_bytes,
          "Bytes of memory shared with one client; 0 = no bound");
ABSL_FLAG(absl::Duration, sequence_ttl, Limits().sequence_ttl, "An idle sequence is forgotten after this");
ABSL_FLAG(uint64_t, replay_tokens_per_second, Limits().replay_tokens_per_second,
          "Tokens of long histories taken in a second, all streams together; a quarter while rows wait for a device");
ABSL_FLAG(absl::Duration, replay_guard, Limits().replay_guard,
          "A history that was sent is kept for its first step for this long");
ABSL_FLAG(uint32_t, max_history, Limits().max_history, "Tokens of prompt and output of one sequence");
ABSL_FLAG(uint32_t, kept_history, Limits().kept_history,
          "Tokens back to which a sequence can be truncated without a replay");
ABSL_FLAG(uint32_t, max_listed_tokens, Limits().max_listed_tokens,
          "Bias, allowed and banned entries of one sequence, each");

namespace sortition::server {

void ReadTuningFlags(Config* config) {
  config->port_file = absl::GetFlag(FLAGS_port_file);
  config->route = absl::GetFlag(FLAGS_route);
  config->cpu_target = absl::GetFlag(FLAGS_cpu_target);
  config->vulkan_cache = absl::GetFlag(FLAGS_vulkan_cache);
  config->tls_refresh = absl::GetFlag(FLAGS_tls_refresh);
  config->stream_threads = absl::GetFlag(FLAGS_stream_threads);
  config->limits.max_watchers = absl::GetFlag(FLAGS_max_watchers);
  config->ring_spin = absl::GetFlag(FLAGS_ring_spin);

  Limits& limits = config->limits;
  limits.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  limits.stream_unanswered_bytes = absl::GetFlag(FLAGS_stream_unanswered_bytes);
  limits.stream_unanswered_rows = absl::GetFlag(FLAGS_stream_unanswered_rows);
  limits.stream_sequences = absl::GetFlag(FLAGS_stream_sequences);
  limits.stalled_write = absl::GetFlag(FLAGS_stalled_write);
  limits.max_step_positions = absl::GetFlag(FLAGS_max_step_positions);
  limits.max_queued_rows = absl::GetFlag(FLAGS_max_queued_rows);
  limits.max_vocabulary = absl::GetFlag(FLAGS_max_vocabulary);
  limits.max_compact_tokens = absl::GetFlag(FLAGS_max_compact_tokens);
  limits.max_compact_bytes = absl::GetFlag(FLAGS_max_compact_bytes);
  limits.stream_masks = absl::GetFlag(FLAGS_stream_masks);
  limits.stream_mask_bytes = absl::GetFlag(FLAGS_stream_mask_bytes);
  limits.max_mask_bytes = absl::GetFlag(FLAGS_max_mask_bytes);
  limits.shard_wait = absl::GetFlag(FLAGS_shard_wait);
  limits.ready_wait = absl::GetFlag(FLAGS_ready_wait);
  limits.max_unready_steps = absl::GetFlag(FLAGS_max_unready_steps);
  limits.max_shard_answer_bytes = absl::GetFlag(FLAGS_max_shard_answer_bytes);
  config->receipts.file_bytes = absl::GetFlag(FLAGS_receipt_file_bytes);
  config->receipts.queue_bytes = absl::GetFlag(FLAGS_receipt_queue_bytes);
  limits.max_memory_connections = absl::GetFlag(FLAGS_max_memory_connections);
  limits.max_rings = absl::GetFlag(FLAGS_max_rings);
  limits.connection_memory_bytes = absl::GetFlag(FLAGS_connection_memory_bytes);
  limits.connection_regions = absl::GetFlag(FLAGS_connection_regions);
  limits.max_clients = absl::GetFlag(FLAGS_max_clients);
  limits.client_bytes_per_second = absl::GetFlag(FLAGS_client_bytes_per_second);
  limits.client_sequences = absl::GetFlag(FLAGS_client_sequences);
  limits.client_regions = absl::GetFlag(FLAGS_client_regions);
  limits.client_memory_bytes = absl::GetFlag(FLAGS_client_memory_bytes);
  limits.sequence_ttl = absl::GetFlag(FLAGS_sequence_ttl);
  limits.replay_tokens_per_second = absl::GetFlag(FLAGS_replay_tokens_per_second);
  limits.replay_guard = absl::GetFlag(FLAGS_replay_guard);
  limits.max_history = absl::GetFlag(FLAGS_max_history);
  limits.kept_history = absl::GetFlag(FLAGS_kept_history);
  limits.max_listed_tokens = absl::GetFlag(FLAGS_max_listed_tokens);
}

}  // namespace sortition::server
