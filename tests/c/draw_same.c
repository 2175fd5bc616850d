// Draws a text and prints each token with the bits of its log probability: in process, or at the target that is named.
#include "testing.h"

int main(int count, char** arguments) {
  static float logits[VOCABULARY];
  sortition_error* error = NULL;
  sortition_parameters* const parameters = make_parameters();
  const sortition_sequence_options options = sequence_options("c", parameters);
  sortition_sequence* sequence = NULL;
  sortition_client* client = NULL;
  uint32_t seed;
  if (count > 1) {
    const char* const target = arguments[1];
    sortition_client_options client_options = {0};
    client_options.struct_size = sizeof(client_options);
    client_options.targets = &target;
    client_options.target_count = 1;
    CHECK_OK(sortition_client_connect(&client_options, &client, &error));
    CHECK_OK(sortition_client_open(client, &options, &sequence, &error));
  } else {
    CHECK_OK(sortition_local_open(&options, &sequence, &error));
  }
  for (seed = 0; seed < 40; ++seed) {
    const sortition_row row = row_of(sequence, logits);
    const sortition_batch batch = batch_of(&row, 1);
    sortition_results* results = NULL;
    const sortition_position* position;
    uint32_t bits;
    fill_logits(logits, VOCABULARY, seed);
    if (client != NULL) {
      CHECK_OK(sortition_client_step(client, &batch, NULL, &results, &error));
    } else {
      CHECK_OK(sortition_local_step(&batch, &results, &error));
    }
    CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW);
    position = results->rows[0]->positions[0];
    memcpy(&bits, &position->processed->logprob, sizeof(bits));
    printf("%u %08x\n", (unsigned)position->token, (unsigned)bits);
    sortition_results_free(results);
  }
  CHECK_OK(sortition_sequence_close(sequence, &error));
  if (client != NULL) CHECK_OK(sortition_client_close(client, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  return 0;
}
