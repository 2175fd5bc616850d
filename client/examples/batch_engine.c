// Samples for an engine that batches and drafts, by the C interface alone: requests in slots, the logits of all
// requests in one matrix, drafts with the drafter's probabilities. docs/c.md explains the layout. The model is a
// stand-in.
//
// usage: batch_engine MODE SLOTS NOISE [HOST:PORT]
//   MODE   none, coupled, rejection or block: how drafts are accepted
//   SLOTS  requests that a step may have, 1 to 16
//   NOISE  how far the drafter's logits are from the model's; 0: equal
//   HOST:PORT  a service; without one this process samples
#include <math.h>
#include <sortition/sortition.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 24, MOST_SLOTS = 16, MOST_DRAFTS = 3, VOCABULARY = 512, LENGTH = 40, NONE = -1 };

// One request. It moves as a whole when the batch closes a gap, and its sampling state with it: the handle.
struct request {
  uint32_t id;
  sortition_sequence* sequence;
  float temperature;  // the drafter's, too
  uint32_t tokens[LENGTH];
  uint32_t count;
  uint32_t drafted;
  uint32_t accepted;
};

// One step as the engine lays it out. Slot s has the rows first_row[s] to first_row[s + 1] of `logits`: one for each of
// its drafts and one more. Its drafts begin at first_row[s] - s, since each slot before it has one more row than
// drafts.
struct step {
  uint32_t first_row[MOST_SLOTS + 1];
  float logits[MOST_SLOTS * (MOST_DRAFTS + 1)][VOCABULARY];
  uint32_t drafts[MOST_SLOTS * MOST_DRAFTS];
  float draft_probabilities[MOST_SLOTS * MOST_DRAFTS][VOCABULARY];
};

static sortition_client* client;  // null: this process samples

// Ends the program if the call has failed.
static void check(sortition_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s %s (%s): %s\n", error->reason_name, error->field, error->limit, error->message);
  exit(1);
}

// ---- the stand-in for a model and its drafter

// Returns a number in [0, 1) that depends on both numbers alone.
static float uniform(uint32_t a, uint32_t b) {
  uint64_t x = ((uint64_t)a << 32 | b) + 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (float)(x >> 40) / 16777216.0f;
}

// Fills the logits of the token after `last`. The model has no noise.
static void forward(uint32_t last, float noise, float* logits) {
  uint32_t i;
  for (i = 0; i < VOCABULARY; ++i) logits[i] = 250 * uniform(last, i) + noise * uniform(~last, i);
}

// Fills the drafter's probabilities of the token after `last`. Returns a draw from them for verifiers that take them,
// and the likeliest token for the one that does not.
static uint32_t draft(const struct request* request, uint32_t position, uint32_t last, int32_t mode, float noise,
                      float* probabilities) {
  double left = uniform(1000 + request->id, position);
  double sum = 0;
  uint32_t likeliest = 0, i;
  forward(last, noise, probabilities);
  for (i = 1; i < VOCABULARY; ++i) likeliest = probabilities[i] > probabilities[likeliest] ? i : likeliest;
  if (mode == SORTITION_VERIFY_COUPLED) return likeliest;
  for (i = 0; i < VOCABULARY; ++i) sum += exp(probabilities[i] / request->temperature);
  for (i = 0; i < VOCABULARY; ++i) probabilities[i] = (float)(exp(probabilities[i] / request->temperature) / sum);
  for (i = 0; i < VOCABULARY - 1 && left >= probabilities[i]; ++i) left -= probabilities[i];
  return i;
}

// ---- what an engine does for each request

// Opens a request, each with its own options and seed.
static void admit(struct request* request, uint32_t id) {
  sortition_error* error = NULL;
  sortition_parameters* parameters = NULL;
  sortition_sequence_options options = {0};
  char name[32];
  memset(request, 0, sizeof(*request));
  request->id = id;
  request->temperature = 0.7f + 0.1f * (float)(id % 4);
  sortition_parameters_new(&parameters, &error);
  check(error);
  sortition_parameters_set_double(parameters, "temperature", request->temperature, &error);
  check(error);
  if (id % 4 == 1) sortition_parameters_set_double(parameters, "top_p", 0.9, &error);
  if (id % 4 == 2) sortition_parameters_set_double(parameters, "repetition_penalty", 1.2, &error);
  if (id % 4 == 3) sortition_parameters_set_uint(parameters, "top_k", 40, &error);
  check(error);
  snprintf(name, sizeof(name), "request-%u", (unsigned)id);
  options.struct_size = sizeof(options);
  options.request_id = name;
  options.parameters = parameters;
  options.vocabulary_size = VOCABULARY;
  options.prompt = &id;
  options.prompt_count = 1;
  options.seed = id;
  options.has_seed = 1;
  if (client != NULL) {
    sortition_client_open(client, &options, &request->sequence, &error);
  } else {
    sortition_local_open(&options, &request->sequence, &error);
  }
  check(error);
  sortition_parameters_close(parameters, NULL);
}

// Proposes drafts for slot `s` and runs the model over them. The rows of the slot begin where those before it end.
static void run_model(struct step* step, uint32_t s, struct request* request, int32_t mode, float noise) {
  const uint32_t first = step->first_row[s];
  const uint32_t left = LENGTH - request->count - 1;  // a step yields one token more than accepted drafts
  uint32_t drafts = mode == NONE ? 0 : (request->id + request->count) % (MOST_DRAFTS + 1);
  uint32_t last = request->count > 0 ? request->tokens[request->count - 1] : request->id;
  uint32_t i;
  if (drafts > left) drafts = left;
  for (i = 0; i < drafts; ++i) {
    forward(last, 0, step->logits[first + i]);
    last = draft(request, request->count + i, last, mode, noise, step->draft_probabilities[first - s + i]);
    step->drafts[first - s + i] = last;
  }
  forward(last, 0, step->logits[first + drafts]);
  step->first_row[s + 1] = first + drafts + 1;
  request->drafted += drafts;
}

// Takes the result of a request. Returns 1 if the request has ended. A row that fails ends its own request alone.
static int commit(struct request* request, const sortition_result* result) {
  size_t i;
  if (result->error != NULL) {
    printf("request %u: %s\n", (unsigned)request->id, result->error->message);
    return 1;
  }
  for (i = 0; i < result->position_count; ++i) request->tokens[request->count++] = result->positions[i]->token;
  request->accepted += result->accepted;  // the key-value cache keeps the input and this number of drafts
  if (request->count < LENGTH) return 0;
  printf("request %u: %u of %u:", (unsigned)request->id, (unsigned)request->accepted, (unsigned)request->drafted);
  for (i = 0; i < LENGTH; ++i) printf(" %u", (unsigned)request->tokens[i]);
  printf("\n");
  return 1;
}

// Samples all slots by one call.
static sortition_results* sample(const struct step* step, const struct request* requests, uint32_t count,
                                 int32_t mode) {
  sortition_error* error = NULL;
  sortition_results* results = NULL;
  sortition_row rows[MOST_SLOTS];
  sortition_drafts drafts[MOST_SLOTS];
  sortition_batch batch = {0};
  uint32_t s;
  memset(rows, 0, sizeof(rows));
  memset(drafts, 0, sizeof(drafts));
  for (s = 0; s < count; ++s) {
    const uint32_t first = step->first_row[s];
    rows[s].struct_size = sizeof(rows[s]);
    rows[s].sequence = requests[s].sequence;
    rows[s].logits = step->logits[first];
    if (step->first_row[s + 1] == first + 1) continue;  // no draft: a plain draw
    drafts[s].struct_size = sizeof(drafts[s]);
    drafts[s].tokens = step->drafts + (first - s);
    drafts[s].count = step->first_row[s + 1] - first - 1;
    drafts[s].mode = mode;
    if (mode != SORTITION_VERIFY_COUPLED) drafts[s].probabilities = step->draft_probabilities[first - s];
    rows[s].drafts = &drafts[s];
  }
  batch.struct_size = sizeof(batch);
  batch.rows = rows;
  batch.row_count = count;
  batch.vocabulary_size = VOCABULARY;
  batch.dtype = SORTITION_F32;
  if (client != NULL) {
    sortition_client_step(client, &batch, NULL, &results, &error);
  } else {
    sortition_local_step(&batch, &results, &error);
  }
  check(error);
  return results;
}

int main(int argc, char** argv) {
  static const char* const modes[] = {"none", "coupled", "greedy", "rejection", "block"};  // 1 + SORTITION_VERIFY_*
  static struct step step;
  static struct request requests[MOST_SLOTS];
  uint32_t count = 0, admitted = 0, s;
  if (!SORTITION_ABI_FITS(sortition_abi_version())) {
    fprintf(stderr, "libsortition_c has ABI version %u, this program needs %u\n", (unsigned)sortition_abi_version(),
            (unsigned)SORTITION_ABI_VERSION);
    return 2;
  }
  int32_t mode = NONE;
  while (argc > 3 && mode <= SORTITION_VERIFY_BLOCK && strcmp(argv[1], modes[1 + mode]) != 0) ++mode;
  const uint32_t slots = argc > 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
  if (mode > SORTITION_VERIFY_BLOCK || slots < 1 || slots > MOST_SLOTS) {
    fprintf(stderr, "usage: batch_engine none|coupled|rejection|block SLOTS(1..%d) NOISE [HOST:PORT]\n", MOST_SLOTS);
    return 2;
  }
  const float noise = strtof(argv[3], NULL);
  if (argc > 4) {
    const char* const target = argv[4];
    sortition_error* error = NULL;
    sortition_client_options options = {0};
    options.struct_size = sizeof(options);
    options.targets = &target;
    options.target_count = 1;
    sortition_client_connect(&options, &client, &error);
    check(error);
  }
  while (admitted < REQUESTS || count > 0) {
    while (admitted < REQUESTS && count < slots) admit(&requests[count++], admitted++);
    for (s = 0; s < count; ++s) run_model(&step, s, &requests[s], mode, noise);
    sortition_results* const results = sample(&step, requests, count, mode);
    for (s = count; s-- > 0;) {  // from the end: the last request fills the gap of one that has ended
      if (!commit(&requests[s], results->rows[s])) continue;
      sortition_sequence_close(requests[s].sequence, NULL);
      requests[s] = requests[--count];
    }
    sortition_results_free(results);
  }
  if (client != NULL) sortition_client_close(client, NULL);
  return 0;
}
