// The C interface's rules: versions, sizes of structs, handles, parameters by name. No call crashes.
#include <pthread.h>

#include "testing.h"

static float logits[2 * VOCABULARY];
static sortition_error* error;

#define REFUSED(call, reason, field) CHECK_REFUSED(call, SORTITION_INVALID_ARGUMENT, SORTITION_REASON_##reason, field)

static sortition_sequence* open_local(void) {
  const sortition_sequence_options options = sequence_options("a", NULL);
  sortition_sequence* sequence = NULL;
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  return sequence;
}

static void LibraryHasTheHeadersVersion(void) {
  CHECK_TEXT(sortition_version(), SORTITION_VERSION);
  CHECK(sortition_abi_version() == SORTITION_ABI_VERSION);
  CHECK(sortition_law_version() >= 1);
}

// A library fits if it is as new as the header, within a major number.
static void AbiFitsItsMajorNumber(void) {
  const uint32_t header = SORTITION_ABI_VERSION;
  CHECK(SORTITION_ABI_FITS(header) && SORTITION_ABI_FITS(header + 1) && SORTITION_ABI_FITS(header / 1000 * 1000 + 999));
  CHECK(!SORTITION_ABI_FITS(header - 1) && !SORTITION_ABI_FITS(header + 1000));
}

static void NullIsRefusedByName(void) {
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence* sequence = open_local();
  const sortition_row row = row_of(sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  const sortition_sequence_options options = sequence_options("a", NULL);
  sortition_results* results = NULL;
  sortition_sequence* other = NULL;
  sortition_client* client = NULL;
  sortition_memory* memory = NULL;
  size_t count = 0;
  REFUSED(sortition_parameters_new(NULL, &error), MISSING_FIELD, "parameters");
  REFUSED(sortition_parameters_copy(NULL, (sortition_parameters**)&other, &error), MISSING_FIELD, "from");
  REFUSED(sortition_parameters_copy(parameters, NULL, &error), MISSING_FIELD, "copy");
  REFUSED(sortition_parameters_close(NULL, &error), MISSING_FIELD, "parameters");
  REFUSED(sortition_parameters_set_double(NULL, "top_p", 1, &error), MISSING_FIELD, "parameters");
  REFUSED(sortition_parameters_set_double(parameters, NULL, 1, &error), MISSING_FIELD, "name");
  REFUSED(sortition_parameters_set_tokens(parameters, "stop_token_ids", NULL, 1, &error), MISSING_FIELD, "tokens");
  REFUSED(sortition_parameters_clear(parameters, NULL, &error), MISSING_FIELD, "name");
  REFUSED(sortition_local_open(NULL, &other, &error), MISSING_FIELD, "options");
  REFUSED(sortition_local_open(&options, NULL, &error), MISSING_FIELD, "sequence");
  REFUSED(sortition_sequence_fork(NULL, &options, NULL, &other, &error), MISSING_FIELD, "parent");
  REFUSED(sortition_sequence_clone(NULL, &other, &error), MISSING_FIELD, "sequence");
  REFUSED(sortition_sequence_append(sequence, NULL, 1, &error), MISSING_FIELD, "tokens");
  REFUSED(sortition_sequence_truncate(NULL, 0, &error), MISSING_FIELD, "sequence");
  REFUSED(sortition_sequence_replace_last(NULL, 0, &error), MISSING_FIELD, "sequence");
  REFUSED(sortition_sequence_get_info(sequence, NULL, &error), MISSING_FIELD, "info");
  REFUSED(sortition_sequence_get_tokens(sequence, NULL, 0, NULL, &error), MISSING_FIELD, "count");
  REFUSED(sortition_sequence_close(NULL, &error), MISSING_FIELD, "sequence");
  REFUSED(sortition_local_step(NULL, &results, &error), MISSING_FIELD, "batch");
  REFUSED(sortition_local_step(&batch, NULL, &error), MISSING_FIELD, "results");
  REFUSED(sortition_client_connect(NULL, &client, &error), MISSING_FIELD, "options");
  REFUSED(sortition_client_open(NULL, &options, &other, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_step(NULL, &batch, NULL, &results, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_step_async(NULL, &batch, NULL, NULL, NULL, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_allocate(NULL, 1, &memory, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_get_transport(NULL, NULL, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_get_worker_session(NULL, NULL, 0, &count, &error), MISSING_FIELD, "client");
  REFUSED(sortition_client_close(NULL, &error), MISSING_FIELD, "client");
  sortition_error_free(NULL);
  sortition_results_free(NULL);
  sortition_memory_free(NULL);
  CHECK_OK(sortition_sequence_close(sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
}

static void ClosedHandleIsRefused(void) {
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence* const sequence = open_local();
  sortition_sequence_options options = sequence_options("a", parameters);
  const sortition_row row = row_of(sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  sortition_sequence* other = NULL;
  sortition_results* results = (sortition_results*)&batch;
  CHECK_OK(sortition_sequence_close(sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  REFUSED(sortition_sequence_close(sequence, &error), NONE, "sequence");
  REFUSED(sortition_sequence_truncate(sequence, 0, &error), NONE, "sequence");
  REFUSED(sortition_local_step(&batch, &results, &error), NONE, "batch.rows[0].sequence");
  CHECK(results == NULL);
  REFUSED(sortition_parameters_set_uint(parameters, "top_k", 1, &error), NONE, "parameters");
  REFUSED(sortition_local_open(&options, &other, &error), NONE, "options.parameters");
}

static void HandleOfAnotherKindIsRefused(void) {
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence* const sequence = open_local();
  REFUSED(sortition_sequence_truncate((sortition_sequence*)parameters, 0, &error), NONE, "sequence");
  REFUSED(sortition_client_close((sortition_client*)sequence, &error), NONE, "client");
  REFUSED(sortition_parameters_close((sortition_parameters*)logits, &error), NONE, "parameters");
  CHECK_OK(sortition_sequence_close(sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
}

static void ErrorMayBeLeftOut(void) {
  CHECK(sortition_sequence_close(NULL, NULL) == SORTITION_INVALID_ARGUMENT);
  CHECK(sortition_sequence_truncate(NULL, 0, NULL) == SORTITION_INVALID_ARGUMENT);
}

// Structs as a header before the later fields would have had them.
struct older_options {
  size_t struct_size;
  const char* request_id;
  const sortition_parameters* parameters;
  uint32_t vocabulary_size;
  uint32_t live_vocabulary_size;
};
struct older_row {
  size_t struct_size;
  sortition_sequence* sequence;
  const void* logits;
};
struct older_batch {
  size_t struct_size;
  const void* rows;
  size_t row_count;
  uint32_t vocabulary_size;
  int32_t dtype;
};
struct older_info {
  size_t struct_size;
  uint64_t seed;
};

static void OlderStructsWork(void) {
  struct older_options options = {sizeof(options), "a", NULL, VOCABULARY, 0};
  struct older_row rows[2];
  struct older_batch batch = {sizeof(batch), rows, 2, VOCABULARY, SORTITION_F32};
  struct {
    struct older_info info;
    uint64_t after;
  } filled = {{sizeof(struct older_info), 0}, 77};
  sortition_sequence* sequences[2];
  sortition_results* results = NULL;
  int i;
  fill_logits(logits, 2 * VOCABULARY, 1);
  for (i = 0; i < 2; ++i) {
    CHECK_OK(sortition_local_open((const sortition_sequence_options*)(void*)&options, &sequences[i], &error));
    rows[i].struct_size = sizeof(rows[i]);
    rows[i].sequence = sequences[i];
    rows[i].logits = logits + i * VOCABULARY;
  }
  CHECK_OK(sortition_local_step((const sortition_batch*)(void*)&batch, &results, &error));
  CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW && results->rows[1]->kind == SORTITION_RESULT_DRAW);
  sortition_results_free(results);
  CHECK_OK(sortition_sequence_get_info(sequences[0], (sortition_sequence_info*)(void*)&filled.info, &error));
  CHECK(filled.info.seed != 0 && filled.info.struct_size == sizeof(filled.info) && filled.after == 77);
  for (i = 0; i < 2; ++i) CHECK_OK(sortition_sequence_close(sequences[i], &error));
}

static void UnknownSizesAreNamed(void) {
  sortition_sequence* const sequence = open_local();
  sortition_sequence_options options = sequence_options("a", NULL);
  sortition_row rows[2];
  sortition_batch batch = batch_of(rows, 2);
  sortition_drafts drafts = {0};
  sortition_sequence_info info = {0};
  sortition_client_options client_options = {0};
  sortition_sequence* other = NULL;
  sortition_results* results = NULL;
  sortition_client* client = NULL;
  const size_t wrong[] = {0, 8, 33, sizeof(options) - 4, sizeof(options) + 8, 1u << 20};
  size_t i;
  for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    options.struct_size = wrong[i];
    REFUSED(sortition_local_open(&options, &other, &error), SIZE_MISMATCH, "options.struct_size");
  }
  options.struct_size = sizeof(options) + 8;
  CHECK(sortition_local_open(&options, &other, &error) == SORTITION_INVALID_ARGUMENT);
  CHECK(strstr(error->limit, "32..") == error->limit && strstr(error->message, SORTITION_VERSION) != NULL);
  sortition_error_free(error);
  rows[0] = row_of(sequence, logits);
  rows[1] = row_of(sequence, logits);
  rows[1].struct_size -= 8;
  REFUSED(sortition_local_step(&batch, &results, &error), SIZE_MISMATCH, "batch.rows[1].struct_size");
  rows[1].struct_size = 0;
  REFUSED(sortition_local_step(&batch, &results, &error), SIZE_MISMATCH, "batch.rows[1].struct_size");
  rows[0].struct_size = 0;
  REFUSED(sortition_local_step(&batch, &results, &error), SIZE_MISMATCH, "batch.rows[0].struct_size");
  rows[0] = rows[1] = row_of(sequence, logits);
  rows[1].drafts = &drafts;
  REFUSED(sortition_local_step(&batch, &results, &error), SIZE_MISMATCH, "batch.rows[1].drafts.struct_size");
  batch.struct_size = 16;
  REFUSED(sortition_local_step(&batch, &results, &error), SIZE_MISMATCH, "batch.struct_size");
  REFUSED(sortition_sequence_get_info(sequence, &info, &error), SIZE_MISMATCH, "info.struct_size");
  REFUSED(sortition_client_connect(&client_options, &client, &error), SIZE_MISMATCH, "options.struct_size");
  CHECK_OK(sortition_sequence_close(sequence, &error));
}

static void WrongFieldsAreNamed(void) {
  sortition_sequence* const sequence = open_local();
  sortition_sequence_options options = sequence_options("a", NULL);
  sortition_row row = row_of(sequence, logits);
  sortition_batch batch = batch_of(&row, 1);
  sortition_drafts drafts = {0};
  const uint32_t token = 1;
  const uint32_t word = 0;
  sortition_sequence* other = NULL;
  sortition_results* results = NULL;
  options.reserved = 1;
  CHECK_REFUSED(sortition_local_open(&options, &other, &error), SORTITION_OUT_OF_RANGE, SORTITION_REASON_OUT_OF_RANGE,
                "options.reserved");
  options = sequence_options("\xc3\x28", NULL);
  CHECK_REFUSED(sortition_local_open(&options, &other, &error), SORTITION_OUT_OF_RANGE, SORTITION_REASON_OUT_OF_RANGE,
                "options.request_id");
  options = sequence_options(NULL, NULL);
  CHECK(sortition_local_open(&options, &other, &error) != SORTITION_OK);
  CHECK_TEXT(error->field, "open.request_id");
  sortition_error_free(error);
  batch.dtype = 0;
  REFUSED(sortition_local_step(&batch, &results, &error), UNKNOWN_ENUM_VALUE, "batch.dtype");
  batch.dtype = SORTITION_F32;
  batch.draft_dtype = 9;
  REFUSED(sortition_local_step(&batch, &results, &error), UNKNOWN_ENUM_VALUE, "batch.draft_dtype");
  batch.draft_dtype = 0;
  batch.ready_word = &word;
  REFUSED(sortition_local_step(&batch, &results, &error), CONTRADICTION, "batch.ready_word");
  batch.ready_word = NULL;
  batch.row_count = 0;
  REFUSED(sortition_local_step(&batch, &results, &error), MISSING_FIELD, "batch.rows");
  batch.row_count = 1;
  row.scored = &token;
  REFUSED(sortition_local_step(&batch, &results, &error), MISSING_FIELD, "batch.rows[0].scored");
  row.scored = NULL;
  drafts.struct_size = sizeof(drafts);
  drafts.mode = 9;
  row.drafts = &drafts;
  REFUSED(sortition_local_step(&batch, &results, &error), UNKNOWN_ENUM_VALUE, "batch.rows[0].drafts.mode");
  row.drafts = NULL;
  row.logits = NULL; /* a row's own mistake */
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->rows[0]->error->code == SORTITION_INVALID_ARGUMENT);
  CHECK(strstr(results->rows[0]->error->message, "logits") != NULL);
  sortition_results_free(results);
  CHECK_OK(sortition_sequence_close(sequence, &error));
}

static void ParametersAreRefusedByName(void) {
  sortition_parameters* const parameters = make_parameters();
  sortition_sequence_options options = sequence_options("a", parameters);
  sortition_sequence* sequence = NULL;
  REFUSED(sortition_parameters_set_double(parameters, "temprature", 1, &error), UNKNOWN_FIELD, "temprature");
  REFUSED(sortition_parameters_set_double(parameters, "mirostat.tau.x", 1, &error), UNKNOWN_FIELD, "mirostat.tau.x");
  REFUSED(sortition_parameters_set_double(parameters, "", 1, &error), UNKNOWN_FIELD, "");
  CHECK(sortition_parameters_set_uint(parameters, "top_p", 1, &error) == SORTITION_INVALID_ARGUMENT);
  CHECK_TEXT(error->limit, "(0, 1]");
  CHECK(strstr(error->message, "sortition_parameters_set_double") != NULL);
  sortition_error_free(error);
  CHECK(sortition_parameters_set_uint(parameters, "mirostat", 2, &error) == SORTITION_INVALID_ARGUMENT);
  CHECK(strstr(error->message, "mirostat.version, mirostat.tau") != NULL);
  sortition_error_free(error);
  CHECK_REFUSED(sortition_parameters_set_uint(parameters, "top_k", (uint64_t)1 << 32, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_OUT_OF_RANGE, "top_k");
  CHECK_REFUSED(sortition_parameters_set_double(parameters, "top_p", 1e300, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_OUT_OF_RANGE, "top_p");
  REFUSED(sortition_parameters_set_text(parameters, "chain.preset", "PRESET_X", &error), UNKNOWN_ENUM_VALUE,
          "chain.preset");
  CHECK_OK(sortition_parameters_set_double(parameters, "temperature", 200, &error));
  CHECK_REFUSED(sortition_local_open(&options, &sequence, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_OUT_OF_RANGE, "open.parameters.temperature");
  CHECK_OK(sortition_parameters_clear(parameters, "temperature", &error));
  CHECK_OK(sortition_parameters_clear(parameters, "raw_logprobs.top", &error));
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  CHECK_OK(sortition_sequence_close(sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
}

static void CopyIsIndependent(void) {
  sortition_parameters* const parameters = make_parameters();
  sortition_parameters* copy = NULL;
  sortition_sequence_options options = sequence_options("a", NULL);
  sortition_sequence* sequence = NULL;
  CHECK_OK(sortition_parameters_copy(parameters, &copy, &error));
  CHECK_OK(sortition_parameters_set_double(parameters, "temperature", 200, &error));
  options.parameters = copy;
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  CHECK_OK(sortition_sequence_close(sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  CHECK_OK(sortition_parameters_close(copy, &error));
}

// Draws 50 tokens of a sequence that another thread draws from, too.
static void* draw_many(void* sequence) {
  sortition_error* failed = NULL;
  const sortition_row row = row_of((sortition_sequence*)sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  int i;
  for (i = 0; i < 50; ++i) {
    sortition_results* results = NULL;
    CHECK(sortition_local_step(&batch, &results, &failed) == SORTITION_OK);
    CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW);
    sortition_results_free(results);
  }
  return NULL;
}

static void ThreadsMayShareASequence(void) {
  sortition_sequence* const sequence = open_local();
  sortition_sequence_info info = {0};
  pthread_t threads[4];
  int i;
  info.struct_size = sizeof(info);
  fill_logits(logits, VOCABULARY, 9);
  for (i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, draw_many, sequence) == 0);
  for (i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK_OK(sortition_sequence_get_info(sequence, &info, &error));
  CHECK(info.position == 204);
  CHECK_OK(sortition_sequence_close(sequence, &error));
}

// Draws until the sequence is refused, because another thread has closed it.
static void* draw_until_closed(void* sequence) {
  const sortition_row row = row_of((sortition_sequence*)sequence, logits);
  const sortition_batch batch = batch_of(&row, 1);
  for (;;) {
    sortition_error* failed = NULL;
    sortition_results* results = NULL;
    if (sortition_local_step(&batch, &results, &failed) != SORTITION_OK) {
      CHECK_TEXT(failed->field, "batch.rows[0].sequence");
      sortition_error_free(failed);
      return NULL;
    }
    sortition_results_free(results);
  }
}

static void SequenceMayCloseDuringSteps(void) {
  sortition_sequence* const sequence = open_local();
  sortition_sequence_info info = {0};
  pthread_t threads[4];
  int i;
  info.struct_size = sizeof(info);
  fill_logits(logits, VOCABULARY, 9);
  for (i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, draw_until_closed, sequence) == 0);
  while (info.position < 50) CHECK_OK(sortition_sequence_get_info(sequence, &info, &error));
  CHECK_OK(sortition_sequence_close(sequence, &error));
  for (i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

#define CASE(name) \
  { #name, name }
static const struct test_case cases[] = {
    CASE(LibraryHasTheHeadersVersion),
    CASE(AbiFitsItsMajorNumber),
    CASE(NullIsRefusedByName),
    CASE(ClosedHandleIsRefused),
    CASE(HandleOfAnotherKindIsRefused),
    CASE(ErrorMayBeLeftOut),
    CASE(OlderStructsWork),
    CASE(UnknownSizesAreNamed),
    CASE(WrongFieldsAreNamed),
    CASE(ParametersAreRefusedByName),
    CASE(CopyIsIndependent),
    CASE(ThreadsMayShareASequence),
    CASE(SequenceMayCloseDuringSteps),
};

int main(void) { return run_cases(cases, sizeof(cases) / sizeof(cases[0])); }
