// The name and meaning of every metric that service/metrics.inc does not have. Base units, bounded labels, never a
// request id.
#pragma once

namespace sortition::monitoring {

struct MetricName {
  const char* name;
  const char* help;
};

// The stream: rate, errors, duration.
inline constexpr MetricName kSteps = {"sortition_steps_total", "Step messages received."};
inline constexpr MetricName kRows = {"sortition_rows_total", "Rows of the steps received."};
inline constexpr MetricName kCompactRows = {"sortition_compact_rows_total",
                                            "Compact rows, by outcome: decided, or why the row was required."};
inline constexpr MetricName kErrors = {"sortition_errors_total",
                                       "Rows, sequences, messages and calls refused, by reason."};
inline constexpr MetricName kRefusedFields = {"sortition_refused_fields_total",
                                              "The same refusals, by reason and the field at fault: a name of the "
                                              "contract; other, or none. A pair is there once it "
                                              "has been refused."};
inline constexpr MetricName kPhaseTokens = {
    "sortition_phase_tokens_total",
    "Rows whose last token was drawn in a phase, by the phase's number in its sequence."};
inline constexpr MetricName kStepLatency = {"sortition_step_latency_seconds",
                                            "Time from a step's arrival to the answer of its last row."};
inline constexpr MetricName kReadyWait = {"sortition_ready_wait_seconds",
                                          "Time from the arrival of a step sent early until its logits were complete; "
                                          "not part of the step's latency."};

// Transports.
inline constexpr MetricName kStreams = {"sortition_streams", "Sampling streams that are open."};
inline constexpr MetricName kStreamsOpened = {"sortition_streams_opened_total", "Sampling streams that were admitted."};
inline constexpr MetricName kStreamsEnded = {"sortition_streams_ended_total",
                                             "Sampling streams that have ended, by the way they ended."};
inline constexpr MetricName kConnectionsEnded = {
    "sortition_connections_ended_total", "Connections ended by the guard of HTTP/2, by what they sent too much of."};
inline constexpr MetricName kReceivedMessages = {"sortition_received_messages_total", "Messages of streams received."};
inline constexpr MetricName kReceivedBytes = {"sortition_received_bytes_total",
                                              "Bytes of the messages received, payloads included."};
inline constexpr MetricName kSentMessages = {"sortition_sent_messages_total", "Messages of streams sent."};
inline constexpr MetricName kSentBytes = {"sortition_sent_bytes_total", "Bytes of the messages sent."};
inline constexpr MetricName kPayloadBytes = {"sortition_payload_bytes_total", "Bulk bytes received: logits and masks."};

// Shared memory.
inline constexpr MetricName kMemoryConnections = {"sortition_memory_connections", "Connections to the memory socket."};
inline constexpr MetricName kMemoryRegions = {"sortition_memory_regions", "Regions of shared memory."};
inline constexpr MetricName kMemoryBytes = {"sortition_memory_bytes", "Bytes of shared memory."};

// The queue and the batches.
inline constexpr MetricName kQueuedRows = {"sortition_queued_rows", "Rows that wait for a device."};
inline constexpr MetricName kQueueSeconds = {
    "sortition_queue_seconds", "Expected time to serve the rows that wait, from the costs of earlier batches."};
inline constexpr MetricName kQueueWait = {"sortition_queue_wait_seconds",
                                          "Time that a batch's oldest row had waited for a device."};
inline constexpr MetricName kBatches = {"sortition_batches_total", "Batches that a device has finished."};
inline constexpr MetricName kBatchRows = {"sortition_batch_rows", "Rows of the batches that a device has finished."};
inline constexpr MetricName kKernelTime = {"sortition_kernel_seconds", "Time that a device spent on a batch."};

// Devices: utilisation, saturation, errors.
inline constexpr MetricName kDeviceInfo = {"sortition_device_info", "Always 1; the labels say what the device is."};
inline constexpr MetricName kDeviceSlots = {"sortition_device_batch_slots",
                                            "Batches that the device takes before more would have to wait."};
inline constexpr MetricName kDeviceBatches = {"sortition_device_batches", "Batches that the device has been given."};
inline constexpr MetricName kDeviceRows = {"sortition_device_rows", "Rows of the batches that the device has."};
inline constexpr MetricName kDeviceFailures = {
    "sortition_device_failures_total",
    "Batches of the device whose answers were not used: it failed, or gave a wrong one."};
inline constexpr MetricName kDeviceState = {"sortition_device_state",
                                            "1 for the state that a device is in, 0 for the others; missing: what "
                                            "--devices asks for and this machine does not have or cannot start."};
inline constexpr MetricName kRoutedBatches = {"sortition_routed_batches_total",
                                              "Batches given to a device, by the reason for its choice."};
inline constexpr MetricName kRerunRows = {"sortition_rerun_rows_total",
                                          "Rows of batches that failed on the device and ran on another."};
inline constexpr MetricName kRecheckedRows = {"sortition_rechecked_rows_total",
                                              "Live rows whose answer was compared with the reference, by result."};

// Sequences.
inline constexpr MetricName kLiveSequences = {"sortition_live_sequences", "Sequences whose state is held."};
inline constexpr MetricName kStateBytes = {"sortition_state_bytes",
                                           "Memory of sequences: states, options and histories in transfer."};

// TLS.
inline constexpr MetricName kCertificateEnd = {
    "sortition_tls_certificate_end_timestamp_seconds",
    "Time at which the certificate in the file of --tls_certificate ends to be valid, in seconds since 1970."};

// The machine.
inline constexpr MetricName kControlLate = {
    "sortition_control_late_seconds",
    "Time by which a thread that sleeps on each core woke too late, by cause: the machine let nothing run, or other "
    "threads ran or the quota of processor time was used up."};

// The server.
inline constexpr MetricName kLimit = {"sortition_limit",
                                      "Every limit; those that can be set have a flag of this name."};
inline constexpr MetricName kDraining = {"sortition_draining", "1 from the first stop signal on, 0 before."};
inline constexpr MetricName kBuildInfo = {"sortition_build_info",
                                          "Always 1; the labels are the versions of this build."};

// The process, by the names that Prometheus's client libraries share.
inline constexpr MetricName kProcessCpu = {"process_cpu_seconds_total", "Processor time, of user and system."};
inline constexpr MetricName kProcessMemory = {"process_resident_memory_bytes", "Memory that is resident."};
inline constexpr MetricName kProcessDescriptors = {"process_open_fds", "File descriptors that are open."};
inline constexpr MetricName kProcessMaxDescriptors = {"process_max_fds", "File descriptors that may be open."};
inline constexpr MetricName kProcessStart = {"process_start_time_seconds", "When the process began, since 1970."};

}  // namespace sortition::monitoring
