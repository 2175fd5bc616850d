// The C interface's client against a running server. usage: c_service_test TCP UNIX MEMORY FOLDER: the server's
// addresses, and a folder for receipts
#include <pthread.h>

#include "testing.h"

static float logits[2 * VOCABULARY];
static sortition_error* error;
static const char* addresses[3];
static const char* folder;

static sortition_client* connect_with(const char* target, int32_t transport, const char* rows) {
  sortition_client_options options = {0};
  sortition_client* client = NULL;
  options.struct_size = sizeof(options);
  options.targets = &target;
  options.target_count = 1;
  options.transport = transport;
  options.worker_session = "c-test";
  options.rows = rows;
  CHECK_OK(sortition_client_connect(&options, &client, &error));
  return client;
}

static sortition_client* connect_to(const char* target, int32_t transport) {
  return connect_with(target, transport, NULL);
}

static sortition_sequence* open_at(sortition_client* client, const char* request_id) {
  sortition_parameters* const parameters = make_parameters();
  const sortition_sequence_options options = sequence_options(request_id, parameters);
  sortition_sequence* sequence = NULL;
  CHECK_OK(sortition_client_open(client, &options, &sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  return sequence;
}

static sortition_sequence* open_here(void) {
  sortition_parameters* const parameters = make_parameters();
  const sortition_sequence_options options = sequence_options("here", parameters);
  sortition_sequence* sequence = NULL;
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  return sequence;
}

// Draws a token at the service and in process, from the same logits, and compares the bits.
static void draw_both(sortition_client* client, sortition_sequence* there, sortition_sequence* here, void* memory) {
  const sortition_row rows[] = {row_of(there, memory), row_of(here, memory)};
  const sortition_batch batches[] = {batch_of(&rows[0], 1), batch_of(&rows[1], 1)};
  sortition_results* results[2] = {NULL, NULL};
  const sortition_position* positions[2];
  int i;
  CHECK_OK(sortition_client_step(client, &batches[0], NULL, &results[0], &error));
  CHECK_OK(sortition_local_step(&batches[1], &results[1], &error));
  for (i = 0; i < 2; ++i) {
    CHECK(results[i]->rows[0]->kind == SORTITION_RESULT_DRAW);
    positions[i] = results[i]->rows[0]->positions[0];
    CHECK(positions[i]->processed != NULL);
  }
  CHECK(positions[0]->token == positions[1]->token);
  CHECK(memcmp(&positions[0]->processed->logprob, &positions[1]->processed->logprob, sizeof(float)) == 0);
  for (i = 0; i < 2; ++i) sortition_results_free(results[i]);
}

// Steps texts over one transport, with rows in the caller's and in allocated memory.
static void step_over(const char* target, int32_t transport, int32_t expected) {
  sortition_client* const client = connect_to(target, transport);
  sortition_sequence* const there = open_at(client, "request-1");
  sortition_sequence* const here = open_here();
  sortition_transport_in_use use = {0};
  sortition_memory* memory = NULL;
  char note[8] = "";
  uint32_t i;
  use.struct_size = sizeof(use);
  use.note = note;
  use.note_size = sizeof(note);
  CHECK_OK(sortition_client_get_transport(client, &use, &error));
  CHECK(use.transport == expected && use.in_process == 0);
  CHECK(strlen(note) == (use.note_length < 7 ? use.note_length : 7));
  CHECK_OK(sortition_client_allocate(client, VOCABULARY * sizeof(float), &memory, &error));
  CHECK(memory->bytes >= VOCABULARY * sizeof(float) && memory->shared == use.row_memory);
  for (i = 0; i < 8; ++i) {
    float* const rows = i % 2 == 0 ? logits : (float*)memory->data;
    fill_logits(rows, VOCABULARY, i);
    draw_both(client, there, here, rows);
  }
  sortition_memory_free(memory);
  CHECK_OK(sortition_sequence_close(there, &error));
  CHECK_OK(sortition_sequence_close(here, &error));
  CHECK_OK(sortition_client_close(client, &error));
}

static void StepsOverTcp(void) { step_over(addresses[0], SORTITION_TRANSPORT_GRPC, SORTITION_TRANSPORT_GRPC); }
static void StepsOverAUnixSocket(void) { step_over(addresses[1], SORTITION_TRANSPORT_GRPC, SORTITION_TRANSPORT_GRPC); }
static void StepsOverARing(void) { step_over(addresses[2], SORTITION_TRANSPORT_RING, SORTITION_TRANSPORT_RING); }

static void RewritesAndForksReachTheService(void) {
  sortition_client* const client = connect_to(addresses[0], SORTITION_TRANSPORT_AUTO);
  sortition_sequence* sequences[2];
  sortition_sequence* children[2] = {NULL, NULL};
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence_options options = sequence_options("child", parameters);
  const uint32_t more[] = {3, 4};
  const uint32_t position = 5;
  uint32_t tokens[16];
  size_t count = 0;
  int i;
  options.prompt = NULL;
  options.prompt_count = 0;
  sequences[0] = open_at(client, "request-2");
  sequences[1] = open_here();
  for (i = 0; i < 2; ++i) {
    CHECK_OK(sortition_sequence_append(sequences[i], more, 2, &error));
    CHECK_OK(sortition_sequence_truncate(sequences[i], 5, &error));
  }
  fill_logits(logits, VOCABULARY, 50);
  draw_both(client, sequences[0], sequences[1], logits);
  CHECK_OK(sortition_sequence_get_tokens(sequences[0], tokens, 16, &count, &error));
  CHECK(count == 6 && tokens[4] == 3);
  for (i = 0; i < 2; ++i) CHECK_OK(sortition_sequence_fork(sequences[i], &options, &position, &children[i], &error));
  draw_both(client, children[0], children[1], logits);
  CHECK_REFUSED(sortition_sequence_clone(sequences[0], &children[0], &error), SORTITION_FAILED_PRECONDITION,
                SORTITION_REASON_NONE, "");
  CHECK_OK(sortition_parameters_close(parameters, &error));
  CHECK_OK(sortition_client_close(client, &error));
}

struct answer {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  sortition_client* client;
  sortition_sequence* sequence;
  int calls;
  uint32_t token;
  sortition_code close_code;
};

static void take(void* user_data, sortition_results* results) {
  struct answer* const answer = (struct answer*)user_data;
  CHECK(results != NULL && results->row_count == 1);
  pthread_mutex_lock(&answer->mutex);
  answer->close_code = sortition_client_close(answer->client, NULL);
  answer->token = results->rows[0]->positions[0]->token;
  ++answer->calls;
  sortition_results_free(results);
  pthread_cond_signal(&answer->changed);
  pthread_mutex_unlock(&answer->mutex);
}

static void AsyncStepCallsBackOnce(void) {
  struct answer answer = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 0, 0, SORTITION_OK};
  sortition_sequence* const here = open_here();
  sortition_step_options options = {0};
  sortition_results* results = NULL;
  sortition_batch batch;
  sortition_row row;
  answer.client = connect_to(addresses[0], SORTITION_TRANSPORT_AUTO);
  answer.sequence = open_at(answer.client, "request-3");
  options.struct_size = sizeof(options);
  options.timeout_ns = UINT64_C(20000000000);
  options.priority = 1;
  fill_logits(logits, VOCABULARY, 60);
  row = row_of(answer.sequence, logits);
  batch = batch_of(&row, 1);
  CHECK_OK(sortition_client_step_async(answer.client, &batch, &options, take, &answer, &error));
  CHECK_OK(sortition_sequence_close(answer.sequence, &error)); /* the step ends as it would have */
  pthread_mutex_lock(&answer.mutex);
  while (answer.calls == 0) pthread_cond_wait(&answer.changed, &answer.mutex);
  pthread_mutex_unlock(&answer.mutex);
  CHECK(answer.close_code == SORTITION_FAILED_PRECONDITION);
  row = row_of(here, logits);
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->rows[0]->positions[0]->token == answer.token);
  sortition_results_free(results);
  row.logits = NULL;
  row.sequence = open_at(answer.client, "request-4");
  CHECK(sortition_client_step_async(answer.client, &batch, NULL, take, &answer, &error) == SORTITION_INVALID_ARGUMENT);
  sortition_error_free(error);
  CHECK_OK(sortition_client_close(answer.client, &error));
  CHECK(answer.calls == 1);
}

// A client and a sequence of it that another thread steps.
struct stepping {
  sortition_client* client;
  sortition_sequence* sequence;
};

static void* step_until_closed(void* given) {
  const struct stepping* const stepping = (const struct stepping*)given;
  const sortition_row row = row_of(stepping->sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  for (;;) {
    sortition_error* failed = NULL;
    sortition_results* results = NULL;
    if (sortition_client_step(stepping->client, &batch, NULL, &results, &failed) != SORTITION_OK) {
      CHECK_TEXT(failed->field, "client");
      sortition_error_free(failed);
      return NULL;
    }
    CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW);
    sortition_results_free(results);
  }
}

static void ClientMayCloseDuringSteps(void) {
  struct stepping stepping;
  sortition_sequence_info info = {0};
  pthread_t thread;
  info.struct_size = sizeof(info);
  stepping.client = connect_to(addresses[0], SORTITION_TRANSPORT_AUTO);
  stepping.sequence = open_at(stepping.client, "request-8");
  fill_logits(logits, VOCABULARY, 80);
  CHECK(pthread_create(&thread, NULL, step_until_closed, &stepping) == 0);
  while (info.position < 20) CHECK_OK(sortition_sequence_get_info(stepping.sequence, &info, &error));
  CHECK_OK(sortition_client_close(stepping.client, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(sortition_sequence_close(stepping.sequence, &error));
}

static void RefusalsAreTheServices(void) {
  sortition_client* const client = connect_to(addresses[0], SORTITION_TRANSPORT_AUTO);
  sortition_sequence* const sequence = open_at(client, "request-5");
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence_options options = sequence_options("request-5", NULL);
  sortition_row row = row_of(sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  sortition_sequence* other = NULL;
  sortition_results* results = NULL;
  char session[4];
  size_t length = 0;
  CHECK_REFUSED(sortition_client_open(client, &options, &other, &error), SORTITION_ALREADY_EXISTS,
                SORTITION_REASON_NONE, "");
  CHECK_OK(sortition_parameters_set_double(parameters, "top_p", 2, &error));
  options = sequence_options("request-6", parameters);
  CHECK_REFUSED(sortition_client_open(client, &options, &other, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_OUT_OF_RANGE, "open.parameters.top_p");
  CHECK_REFUSED(sortition_local_step(&batch, &results, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_CONTRADICTION, "batch.rows[0].sequence");
  CHECK_OK(sortition_client_get_worker_session(client, session, sizeof(session), &length, &error));
  CHECK(length == 6);
  CHECK_TEXT(session, "c-t");
  CHECK_OK(sortition_client_close(client, &error));
  CHECK_REFUSED(sortition_client_step(client, &batch, NULL, &results, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_NONE, "client");
  CHECK_REFUSED(sortition_sequence_fork(sequence, &options, NULL, &other, &error), SORTITION_FAILED_PRECONDITION,
                SORTITION_REASON_NONE, "");
  CHECK_OK(sortition_sequence_close(sequence, &error));
}

static void FallbackSamplesInProcess(void) {
  sortition_client_options options = {0};
  sortition_transport_in_use use = {0};
  sortition_client* client = NULL;
  sortition_sequence* const here = open_here();
  options.struct_size = sizeof(options);
  options.fallback = SORTITION_FALLBACK_IN_PROCESS;
  options.in_process_threads = 1;
  CHECK_OK(sortition_client_connect(&options, &client, &error));
  use.struct_size = sizeof(use);
  CHECK_OK(sortition_client_get_transport(client, &use, &error));
  CHECK(use.in_process == 1);
  fill_logits(logits, VOCABULARY, 70);
  draw_both(client, open_at(client, "request-7"), here, logits);
  CHECK_OK(sortition_client_close(client, &error));
}

static void NothingIsIgnoredByServersOfThisRelease(void) {
  sortition_client_options options = {0};
  sortition_client* client = NULL;
  char fields[8] = "before";
  size_t length = 9;
  options.struct_size = sizeof(options);
  options.targets = addresses;
  options.target_count = 1;
  options.ignore_unknown_fields = 1;
  CHECK_OK(sortition_client_connect(&options, &client, &error));
  CHECK_OK(sortition_sequence_close(open_at(client, "request-8"), &error));
  CHECK_OK(sortition_client_get_ignored_fields(client, fields, sizeof(fields), &length, &error));
  CHECK(length == 0);
  CHECK_TEXT(fields, "");
  CHECK_REFUSED(sortition_client_get_ignored_fields(client, fields, sizeof(fields), NULL, &error),
                SORTITION_INVALID_ARGUMENT, SORTITION_REASON_MISSING_FIELD, "length");
  CHECK_OK(sortition_client_close(client, &error));
}

// service_test.py asks the server whether these rows were compact.
static void CompactRowsGiveTheBitsOfWholeOnes(void) {
  sortition_client* const client = connect_with(addresses[0], SORTITION_TRANSPORT_GRPC, "compact(100)");
  sortition_sequence* const there = open_at(client, "request-9");
  sortition_sequence* const here = open_here();
  uint32_t i;
  for (i = 0; i < 8; ++i) {
    fill_logits(logits, VOCABULARY, 90 + i);
    draw_both(client, there, here, logits);
  }
  CHECK_OK(sortition_sequence_close(there, &error));
  CHECK_OK(sortition_sequence_close(here, &error));
  CHECK_OK(sortition_client_close(client, &error));
}

static void write_file(const char* name, const void* bytes, size_t size) {
  char path[512];
  FILE* file;
  CHECK(snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path));
  file = fopen(path, "wb");
  CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

// service_test.py verifies the receipts that this writes.
static void ReceiptsAreReturned(void) {
  static const uint8_t salt[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static uint8_t records[65536];
  sortition_client* const client = connect_to(addresses[0], SORTITION_TRANSPORT_AUTO);
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence_options options = sequence_options("request-10", parameters);
  sortition_sequence* const here = open_here();
  sortition_sequence* there = NULL;
  sortition_sequence* refused = NULL;
  sortition_receipts* receipts = NULL;
  sortition_receipts* unused = NULL;
  char line[64] = "before";
  size_t size = 0;
  size_t more = 0;
  uint32_t i;
  CHECK_OK(sortition_receipts_new(salt, &receipts, &error));
  CHECK_OK(sortition_receipts_get_seed_line(receipts, line, sizeof(line), &size, &error));
  CHECK(size == 0);
  options.receipts = receipts;
  CHECK_OK(sortition_client_open(client, &options, &there, &error));
  for (i = 0; i < 6; ++i) {
    fill_logits(logits, VOCABULARY, 110 + i);
    draw_both(client, there, here, logits);
  }
  CHECK_OK(sortition_receipts_take(receipts, NULL, 0, &size, &error));
  CHECK(size > 6 * 100);
  CHECK_OK(sortition_receipts_take(receipts, records, size - 1, &more, &error));
  CHECK(more == size);
  CHECK_OK(sortition_receipts_take(receipts, records, sizeof(records), &more, &error));
  CHECK(more == size);
  CHECK_REFUSED(sortition_receipts_await_end(receipts, 1, &error), SORTITION_DEADLINE_EXCEEDED, SORTITION_REASON_NONE,
                "");
  CHECK_OK(sortition_receipts_get_seed_line(receipts, line, sizeof(line), &more, &error));
  CHECK_TEXT(line, "42 000102030405060708090a0b0c0d0e0f");
  options = sequence_options("request-11", parameters);
  options.receipts = receipts;
  CHECK_REFUSED(sortition_client_open(client, &options, &refused, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_CONTRADICTION, "options.receipts");
  CHECK_OK(sortition_sequence_close(there, &error));
  CHECK_OK(sortition_receipts_await_end(receipts, UINT64_C(20000000000), &error));
  CHECK_OK(sortition_receipts_take(receipts, records + size, sizeof(records) - size, &more, &error));
  CHECK(more > 64);
  write_file("c.receipts", records, size + more);
  write_file("c.seeds", line, strlen(line));
  // Local sequences have no receipts from a service.
  CHECK_OK(sortition_receipts_new(NULL, &unused, &error));
  options.receipts = unused;
  CHECK(sortition_local_open(&options, &refused, &error) == SORTITION_INVALID_ARGUMENT);
  sortition_error_free(error);
  CHECK_OK(sortition_receipts_close(unused, &error));
  CHECK_OK(sortition_receipts_close(receipts, &error));
  CHECK_REFUSED(sortition_receipts_take(receipts, NULL, 0, &size, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_NONE, "receipts");
  CHECK_REFUSED(sortition_client_open(client, &options, &refused, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_NONE, "options.receipts");
  CHECK_OK(sortition_parameters_close(parameters, &error));
  CHECK_OK(sortition_sequence_close(here, &error));
  CHECK_OK(sortition_client_close(client, &error));
}

static void WrongOptionsAreNamed(void) {
  const char* const targets[] = {addresses[0], NULL};
  sortition_client_options options = {0};
  sortition_client* client = NULL;
  options.struct_size = sizeof(options);
  options.targets = targets;
  options.target_count = 2;
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_MISSING_FIELD, "options.targets[1]");
  options.target_count = 1;
  options.transport = 3;
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_UNKNOWN_ENUM_VALUE, "options.transport");
  options.transport = 0;
  options.fallback = -1;
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_UNKNOWN_ENUM_VALUE, "options.fallback");
  options.fallback = 0;
  options.rows = "compact()";
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_OUT_OF_RANGE, "options.rows");
  options.rows = NULL;
  options.tls_private_key = "key";
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_CONTRADICTION, "options.use_tls");
  options.tls_private_key = NULL;
  options.shard_tokens = 5;
  CHECK_REFUSED(sortition_client_connect(&options, &client, &error), SORTITION_INVALID_ARGUMENT,
                SORTITION_REASON_CONTRADICTION, "options.shard_count");
  options.shard_tokens = 0;
  options.keepalive_ns = 1;
  CHECK(sortition_client_connect(&options, &client, &error) == SORTITION_INVALID_ARGUMENT);
  CHECK_TEXT(error->field, "ClientOptions::transport.keepalive");
  CHECK_TEXT(error->limit, "10 s to 24 h");
  sortition_error_free(error);
}

#define CASE(name) \
  { #name, name }
static const struct test_case cases[] = {
    CASE(StepsOverTcp),
    CASE(StepsOverAUnixSocket),
    CASE(StepsOverARing),
    CASE(ClientMayCloseDuringSteps),
    CASE(AsyncStepCallsBackOnce),
    CASE(RewritesAndForksReachTheService),
    CASE(RefusalsAreTheServices),
    CASE(FallbackSamplesInProcess),
    CASE(NothingIsIgnoredByServersOfThisRelease),
    CASE(CompactRowsGiveTheBitsOfWholeOnes),
    CASE(ReceiptsAreReturned),
    CASE(WrongOptionsAreNamed),
};

int main(int count, char** arguments) {
  CHECK(count == 5);
  memcpy(addresses, arguments + 1, sizeof(addresses));
  folder = arguments[4];
  return run_cases(cases, sizeof(cases) / sizeof(cases[0]));
}
