// Shared by the C programs of this folder: cases, checks, logits, and options that look at the history.
#pragma once

#include <sortition/sortition.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCABULARY 1000

// Ends the program with a message if the condition does not hold.
#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

#define CHECK_TEXT(text, expected)                                                                     \
  do {                                                                                                 \
    const char* const is = (text);                                                                     \
    if (strcmp(is, expected) != 0) {                                                                   \
      fprintf(stderr, "%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, #text, is, (expected)); \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)

// Ends the program unless the call succeeds. `call` stores its error in `error`.
#define CHECK_OK(call)                                                                           \
  do {                                                                                           \
    if ((call) != SORTITION_OK) {                                                                \
      fprintf(stderr, "%s:%d: %s: code %d, %s (%s): %s\n", __FILE__, __LINE__, #call,            \
              error != NULL ? (int)error->code : 0, error->field, error->limit, error->message); \
      exit(1);                                                                                   \
    }                                                                                            \
    CHECK(error == NULL);                                                                        \
  } while (0)

// Ends the program unless the call is refused with this code, reason and field. Frees the error.
#define CHECK_REFUSED(call, expected_code, expected_reason, expected_field) \
  do {                                                                      \
    const sortition_code code = (call);                                     \
    CHECK(code == (expected_code));                                         \
    CHECK(error != NULL && error->struct_size == sizeof(*error));           \
    CHECK(error->code == code);                                             \
    CHECK_TEXT(error->field, expected_field);                               \
    CHECK(error->reason == (expected_reason));                              \
    sortition_error_free(error);                                            \
    error = NULL;                                                           \
  } while (0)

struct test_case {
  const char* name;
  void (*run)(void);
};

// Runs the cases one after the other and prints their names.
static inline int run_cases(const struct test_case* cases, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    printf("%s\n", cases[i].name);
    fflush(stdout);
    cases[i].run();
  }
  return 0;
}

// Fills logits that the tests in every language make alike: multiples of 1/16 from a linear congruential generator.
static inline void fill_logits(float* logits, size_t count, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1u;
  size_t i;
  for (i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    logits[i] = (float)((int32_t)(state >> 24) - 128) / 16.0f;
  }
}

static inline sortition_sequence_options sequence_options(const char* request_id,
                                                          const sortition_parameters* parameters) {
  static const uint32_t prompt[] = {1, 2, 3, 2};
  sortition_sequence_options options = {0};
  options.struct_size = sizeof(options);
  options.request_id = request_id;
  options.parameters = parameters;
  options.vocabulary_size = VOCABULARY;
  options.prompt = prompt;
  options.prompt_count = 4;
  options.seed = 42;
  options.has_seed = 1;
  return options;
}

// Parameters with a filter, penalties and log probabilities.
static inline sortition_parameters* make_parameters(void) {
  sortition_parameters* parameters = NULL;
  sortition_error* error = NULL;
  CHECK_OK(sortition_parameters_new(&parameters, &error));
  CHECK_OK(sortition_parameters_set_double(parameters, "temperature", 0.9, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "top_k", 50, &error));
  CHECK_OK(sortition_parameters_set_double(parameters, "repetition_penalty", 1.2, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "processed_logprobs.top", 3, &error));
  return parameters;
}

static inline sortition_row row_of(sortition_sequence* sequence, const void* logits) {
  sortition_row row = {0};
  row.struct_size = sizeof(row);
  row.sequence = sequence;
  row.logits = logits;
  return row;
}

static inline sortition_batch batch_of(const sortition_row* rows, size_t count) {
  sortition_batch batch = {0};
  batch.struct_size = sizeof(batch);
  batch.rows = rows;
  batch.row_count = count;
  batch.vocabulary_size = VOCABULARY;
  batch.dtype = SORTITION_F32;
  return batch;
}
