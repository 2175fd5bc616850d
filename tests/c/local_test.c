// The C interface in process: every kind of row, rewrites, forks and copies.
#include <math.h>

#include "testing.h"

static float logits[8 * VOCABULARY];
static sortition_error* error;

static sortition_sequence* open_local(const char* request_id) {
  sortition_parameters* const parameters = make_parameters();
  const sortition_sequence_options options = sequence_options(request_id, parameters);
  sortition_sequence* sequence = NULL;
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  CHECK_OK(sortition_parameters_close(parameters, &error));
  return sequence;
}

static sortition_results* step(const sortition_row* rows, size_t count) {
  const sortition_batch batch = batch_of(rows, count);
  sortition_results* results = NULL;
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->struct_size == sizeof(*results) && results->row_count == count);
  return results;
}

static uint32_t draw(sortition_sequence* sequence, uint32_t seed) {
  sortition_row row;
  sortition_results* results;
  uint32_t token;
  fill_logits(logits, VOCABULARY, seed);
  row = row_of(sequence, logits);
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW);
  token = results->rows[0]->positions[0]->token;
  sortition_results_free(results);
  return token;
}

static sortition_sequence_info info_of(const sortition_sequence* sequence) {
  sortition_sequence_info info = {0};
  info.struct_size = sizeof(info);
  CHECK_OK(sortition_sequence_get_info(sequence, &info, &error));
  return info;
}

static void close_sequence(sortition_sequence* sequence) { CHECK_OK(sortition_sequence_close(sequence, &error)); }

static void DrawReturnsWhatWasAskedFor(void) {
  sortition_sequence* const sequence = open_local("a");
  const sortition_result* result;
  const sortition_logprobs* logprobs;
  sortition_results* results;
  sortition_row row;
  size_t i;
  fill_logits(logits, VOCABULARY, 1);
  row = row_of(sequence, logits);
  results = step(&row, 1);
  result = results->rows[0];
  CHECK(result->struct_size == sizeof(*result) && result->error == NULL);
  CHECK(result->kind == SORTITION_RESULT_DRAW && result->position_count == 1);
  CHECK(result->positions[0]->raw == NULL && result->positions[0]->has_entropy == 0);
  logprobs = result->positions[0]->processed;
  CHECK(logprobs->logprob < 0 && logprobs->rank >= 1 && logprobs->top_count == 3);
  for (i = 1; i < 3; ++i) CHECK(logprobs->top_logprobs[i - 1] >= logprobs->top_logprobs[i]);
  CHECK(info_of(sequence).position == 5 && info_of(sequence).stateful == 1 && info_of(sequence).seed == 42);
  sortition_results_free(results);
  close_sequence(sequence);
}

static void StopTokenIsReported(void) {
  sortition_parameters* parameters = NULL;
  sortition_sequence* sequence = NULL;
  sortition_sequence_options options;
  sortition_results* results;
  sortition_row row;
  uint32_t all[VOCABULARY];
  uint32_t i;
  for (i = 0; i < VOCABULARY; ++i) all[i] = i;
  CHECK_OK(sortition_parameters_new(&parameters, &error));
  CHECK_OK(sortition_parameters_set_tokens(parameters, "stop_token_ids", all, VOCABULARY, &error));
  CHECK_OK(sortition_parameters_set_bool(parameters, "entropy", 1, &error));
  CHECK_OK(sortition_parameters_set_bool(parameters, "kept_set.tokens", 1, &error));
  CHECK_OK(sortition_parameters_set_bool(parameters, "kept_set.count", 1, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "tempered_logprobs.top", 9, &error));
  CHECK_OK(sortition_parameters_set_bool(parameters, "kept_log_mass", 1, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "top_k", 7, &error));
  options = sequence_options("a", parameters);
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  fill_logits(logits, VOCABULARY, 2);
  row = row_of(sequence, logits);
  results = step(&row, 1);
  CHECK(results->rows[0]->finish_reason == SORTITION_FINISH_STOP_TOKEN);
  CHECK(results->rows[0]->positions[0]->kept_token_count == 7);
  CHECK(results->rows[0]->positions[0]->has_kept_count == 1 && results->rows[0]->positions[0]->kept_count == 7);
  CHECK(results->rows[0]->positions[0]->has_entropy == 1 && results->rows[0]->positions[0]->entropy > 0);
  CHECK(results->rows[0]->positions[0]->tempered->top_count == 9);
  CHECK(results->rows[0]->positions[0]->has_kept_log_mass == 1 && results->rows[0]->positions[0]->kept_log_mass < 0);
  sortition_results_free(results);
  close_sequence(sequence);
  CHECK_OK(sortition_parameters_close(parameters, &error));
}

// A sequence whose text repeats itself and completes a phrase.
static void EndsOfTextsAreReported(void) {
  static const uint32_t phrase[2] = {7, 9};
  sortition_parameters* parameters = NULL;
  sortition_sequence* sequence = NULL;
  sortition_sequence_options options;
  sortition_results* results;
  sortition_row row;
  uint32_t i;
  CHECK_OK(sortition_parameters_new(&parameters, &error));
  CHECK_OK(sortition_parameters_set_double(parameters, "temperature", 0, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "repetition_stop.repeats", 3, &error));
  CHECK_OK(sortition_parameters_set_uint(parameters, "repetition_stop.min_length", 0, &error));
  CHECK_OK(sortition_parameters_add_tokens(parameters, "banned_phrases", phrase, 2, &error));
  options = sequence_options("a", parameters);
  CHECK_OK(sortition_local_open(&options, &sequence, &error));
  fill_logits(logits, VOCABULARY, 2);
  logits[7] = 90;
  logits[9] = 80;
  row = row_of(sequence, logits);
  for (i = 0; i < 3; ++i) {
    results = step(&row, 1);
    CHECK(results->rows[0]->positions[0]->token == 7 && results->rows[0]->rewind_tokens == NULL);
    CHECK(results->rows[0]->finish_reason == (i == 2 ? SORTITION_FINISH_REPETITION : SORTITION_FINISH_NONE));
    sortition_results_free(results);
  }
  // The phrase begins with the last of them.
  logits[9] = 100;
  i = info_of(sequence).position;
  results = step(&row, 1);
  CHECK(results->rows[0]->positions[0]->token == 9 && results->rows[0]->rewind_count == 2);
  CHECK(results->rows[0]->rewind_tokens[0] == 7 && results->rows[0]->rewind_position == i - 1);
  sortition_results_free(results);
  CHECK(info_of(sequence).position == i - 1);
  // It is drawn again, without the phrase's first token and without the step's own.
  logits[9] = 80;
  row.banned_tokens = phrase + 1;
  row.banned_count = 1;
  results = step(&row, 1);
  CHECK(results->rows[0]->positions[0]->token != 7 && results->rows[0]->positions[0]->token != 9);
  sortition_results_free(results);
  close_sequence(sequence);
  CHECK_OK(sortition_parameters_close(parameters, &error));
}

static void BadRowFailsAlone(void) {
  sortition_sequence* sequences[3];
  sortition_results* results;
  sortition_row rows[3];
  int i;
  fill_logits(logits, 3 * VOCABULARY, 3);
  logits[VOCABULARY + 700] = NAN;
  for (i = 0; i < 3; ++i) {
    sequences[i] = open_local("a");
    rows[i] = row_of(sequences[i], logits + i * VOCABULARY);
  }
  results = step(rows, 3);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_DRAW && results->rows[2]->kind == SORTITION_RESULT_DRAW);
  CHECK(results->rows[1]->kind == SORTITION_RESULT_ERROR && results->rows[1]->position_count == 0);
  CHECK(results->rows[1]->error->reason == SORTITION_REASON_LOGIT_NAN);
  CHECK_TEXT(results->rows[1]->error->reason_name, "LOGIT_NAN");
  CHECK(strstr(results->rows[1]->error->message, "700") != NULL);
  for (i = 0; i < 3; ++i) {
    CHECK(info_of(sequences[i]).position == (i == 1 ? 4u : 5u));
    close_sequence(sequences[i]);
  }
  sortition_results_free(results);
}

static void MaskLimitsTheDraw(void) {
  sortition_sequence* const sequence = open_local("a");
  uint32_t mask[(VOCABULARY + 31) / 32] = {0};
  sortition_results* results;
  sortition_row row;
  mask[3] = 1u << 5;
  fill_logits(logits, VOCABULARY, 4);
  row = row_of(sequence, logits);
  row.allowed_bits = mask;
  results = step(&row, 1);
  CHECK(results->rows[0]->positions[0]->token == 3 * 32 + 5);
  sortition_results_free(results);
  mask[3] = 0;
  results = step(&row, 1);
  CHECK(results->rows[0]->error->reason == SORTITION_REASON_NO_LIVE_TOKEN);
  sortition_results_free(results);
  close_sequence(sequence);
}

static void CoupledDraftsGiveTheSameText(void) {
  sortition_sequence* const plain = open_local("a");
  sortition_sequence* const drafted = open_local("a");
  sortition_drafts drafts = {0};
  sortition_results* results;
  uint32_t tokens[4];
  sortition_row row;
  uint32_t i;
  for (i = 0; i < 4; ++i) tokens[i] = draw(plain, 10 + i);
  for (i = 0; i < 4; ++i) fill_logits(logits + i * VOCABULARY, VOCABULARY, 10 + i);
  drafts.struct_size = sizeof(drafts);
  drafts.tokens = tokens;
  drafts.count = 3;
  drafts.return_probabilities = 1;
  row = row_of(drafted, logits);
  row.drafts = &drafts;
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_VERIFY && results->rows[0]->accepted == 3);
  CHECK(results->rows[0]->matched == 3 && results->rows[0]->position_matched_count == 3);
  CHECK(results->rows[0]->position_matched[2] == 1);
  CHECK(results->rows[0]->position_count == 4);
  for (i = 0; i < 4; ++i) CHECK(results->rows[0]->positions[i]->token == tokens[i]);
  CHECK(results->rows[0]->positions[3]->probability_count == VOCABULARY);
  CHECK(info_of(drafted).position == 8);
  sortition_results_free(results);
  close_sequence(plain);
  close_sequence(drafted);
}

static void RejectionTakesProbabilities(void) {
  sortition_sequence* const sequence = open_local("a");
  static float probabilities[2 * VOCABULARY];
  const uint32_t tokens[] = {8, 9};
  const float certain[] = {1.0f};
  sortition_sparse_probabilities sparse[2];
  sortition_drafts drafts = {0};
  sortition_results* results;
  sortition_row row;
  int i;
  memset(sparse, 0, sizeof(sparse));
  for (i = 0; i < 2; ++i) {
    probabilities[i * VOCABULARY + (int)tokens[i]] = 1.0f;
    sparse[i].struct_size = sizeof(sparse[i]);
    sparse[i].tokens = &tokens[i];
    sparse[i].probabilities = certain;
    sparse[i].count = 1;
  }
  fill_logits(logits, 3 * VOCABULARY, 5);
  drafts.struct_size = sizeof(drafts);
  drafts.tokens = tokens;
  drafts.count = 2;
  row = row_of(sequence, logits);
  row.drafts = &drafts;
  for (i = 0; i < 4; ++i) {
    drafts.mode = i < 2 ? SORTITION_VERIFY_REJECTION : SORTITION_VERIFY_BLOCK;
    drafts.probabilities = i % 2 == 0 ? probabilities : NULL;
    drafts.sparse_probabilities = i % 2 == 1 ? sparse : NULL;
    results = step(&row, 1);
    CHECK(results->rows[0]->kind == SORTITION_RESULT_VERIFY);
    CHECK(results->rows[0]->position_count == results->rows[0]->accepted + 1);
    sortition_results_free(results);
  }
  close_sequence(sequence);
}

static void TreeReturnsItsPath(void) {
  sortition_sequence* const plain = open_local("a");
  sortition_sequence* const drafted = open_local("a");
  const int32_t parents[] = {-1, -1, 1};
  uint32_t tokens[3];
  sortition_drafts drafts = {0};
  sortition_results* results;
  sortition_row row;
  uint32_t i;
  tokens[1] = draw(plain, 20);
  tokens[2] = draw(plain, 22);
  tokens[0] = (tokens[1] + 1) % VOCABULARY;
  for (i = 0; i < 4; ++i) fill_logits(logits + i * VOCABULARY, VOCABULARY, 20 + i);
  drafts.struct_size = sizeof(drafts);
  drafts.tokens = tokens;
  drafts.parents = parents;
  drafts.count = 3;
  row = row_of(drafted, logits);
  row.drafts = &drafts;
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_VERIFY && results->rows[0]->path_count == 2);
  CHECK(results->rows[0]->path[0] == 1 && results->rows[0]->path[1] == 2);
  sortition_results_free(results);
  close_sequence(plain);
  close_sequence(drafted);
}

static void TreeTakesProbabilities(void) {
  sortition_sequence* const sequence = open_local("a");
  const int32_t parents[] = {-1, -1, 1};
  const uint32_t tokens[] = {4, 5, 6};
  const float halves[] = {0.5f, 0.5f};
  sortition_sparse_probabilities sparse[2];
  sortition_drafts drafts = {0};
  sortition_results* results;
  sortition_row row;
  uint32_t i;
  memset(sparse, 0, sizeof(sparse));
  for (i = 0; i < 2; ++i) { /* of the root, and after draft 1 */
    sparse[i].struct_size = sizeof(sparse[i]);
    sparse[i].tokens = tokens + i;
    sparse[i].probabilities = halves;
    sparse[i].count = 2;
  }
  for (i = 0; i < 4; ++i) fill_logits(logits + i * VOCABULARY, VOCABULARY, 30 + i);
  drafts.struct_size = sizeof(drafts);
  drafts.tokens = tokens;
  drafts.parents = parents;
  drafts.count = 3;
  drafts.mode = SORTITION_VERIFY_REJECTION;
  drafts.sparse_probabilities = sparse;
  row = row_of(sequence, logits);
  row.drafts = &drafts;
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_ERROR);
  CHECK(strstr(results->rows[0]->error->field, "draft_sampling") != NULL);
  sortition_results_free(results);
  drafts.sampling = SORTITION_DRAFTS_WITHOUT_REPLACEMENT;
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_VERIFY);
  CHECK(results->rows[0]->path_count == results->rows[0]->accepted);
  sortition_results_free(results);
  close_sequence(sequence);
}

static void ScoreLeavesTheSequence(void) {
  sortition_sequence* const sequence = open_local("a");
  const uint32_t tokens[] = {5, 6};
  sortition_results* results;
  sortition_row row;
  fill_logits(logits, 2 * VOCABULARY, 6);
  row = row_of(sequence, logits);
  row.scored = tokens;
  row.scored_count = 2;
  results = step(&row, 1);
  CHECK(results->rows[0]->kind == SORTITION_RESULT_SCORE && results->rows[0]->position_count == 2);
  CHECK(results->rows[0]->positions[1]->token == 6 && results->rows[0]->positions[1]->processed != NULL);
  CHECK(info_of(sequence).position == 4);
  sortition_results_free(results);
  close_sequence(sequence);
}

static void RewritesAndForksContinueTheText(void) {
  sortition_sequence* const sequence = open_local("a");
  sortition_sequence* child = NULL;
  sortition_sequence* copy = NULL;
  const uint32_t more[] = {3, 4};
  const uint32_t position = 6;
  sortition_sequence_options options = sequence_options("b", NULL);
  uint32_t tokens[16];
  size_t count = 0;
  CHECK_OK(sortition_sequence_append(sequence, more, 2, &error));
  CHECK_OK(sortition_sequence_replace_last(sequence, 7, &error));
  draw(sequence, 30);
  draw(sequence, 31);
  CHECK_OK(sortition_sequence_get_tokens(sequence, tokens, 16, &count, &error));
  CHECK(count == 8 && tokens[0] == 1 && tokens[4] == 3 && tokens[5] == 7);
  CHECK_OK(sortition_sequence_truncate(sequence, 7, &error));
  CHECK_OK(sortition_sequence_clone(sequence, &copy, &error));
  CHECK(draw(sequence, 32) == draw(copy, 32));

  options.prompt = NULL;
  options.prompt_count = 0;
  CHECK_OK(sortition_sequence_fork(sequence, &options, &position, &child, &error));
  CHECK(info_of(child).position == 6);
  draw(child, 33);
  CHECK_OK(sortition_sequence_get_tokens(sequence, tokens, 2, &count, &error));
  CHECK(count == 8);
  CHECK_REFUSED(sortition_sequence_truncate(sequence, 9, &error), SORTITION_OUT_OF_RANGE, SORTITION_REASON_NONE, "");
  CHECK_REFUSED(sortition_sequence_replace_last(sequence, VOCABULARY, &error), SORTITION_OUT_OF_RANGE,
                SORTITION_REASON_NONE, "");
  close_sequence(sequence);
  close_sequence(copy);
  close_sequence(child);
}

static void RowsOfEveryTypeAreRead(void) {
  sortition_sequence* const sequence = open_local("a");
  uint16_t halves[VOCABULARY] = {0};
  sortition_row row = row_of(sequence, halves);
  sortition_batch batch = batch_of(&row, 1);
  sortition_results* results = NULL;
  halves[77] = 0x4c00; /* 16 */
  batch.dtype = SORTITION_F16;
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->rows[0]->positions[0]->token == 77);
  sortition_results_free(results);
  halves[77] = 0;
  halves[78] = 0x4280; /* 64 */
  batch.dtype = SORTITION_BF16;
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->rows[0]->positions[0]->token == 78);
  sortition_results_free(results);
  close_sequence(sequence);
}

static void OtherWidthFailsItsRow(void) {
  sortition_sequence* const sequence = open_local("a");
  sortition_row row = row_of(sequence, logits);
  sortition_batch batch = batch_of(&row, 1);
  sortition_results* results = NULL;
  batch.vocabulary_size = VOCABULARY - 1;
  CHECK_OK(sortition_local_step(&batch, &results, &error));
  CHECK(results->rows[0]->error->reason == SORTITION_REASON_VOCABULARY_MISMATCH);
  CHECK_TEXT(results->rows[0]->error->limit, "1000");
  sortition_results_free(results);
  close_sequence(sequence);
}

#define CASE(name) \
  { #name, name }
static const struct test_case cases[] = {
    CASE(DrawReturnsWhatWasAskedFor),
    CASE(StopTokenIsReported),
    CASE(BadRowFailsAlone),
    CASE(MaskLimitsTheDraw),
    CASE(CoupledDraftsGiveTheSameText),
    CASE(RejectionTakesProbabilities),
    CASE(TreeTakesProbabilities),
    CASE(TreeReturnsItsPath),
    CASE(ScoreLeavesTheSequence),
    CASE(RewritesAndForksContinueTheText),
    CASE(RowsOfEveryTypeAreRead),
    CASE(OtherWidthFailsItsRow),
    CASE(EndsOfTextsAreReported),
};

int main(void) { return run_cases(cases, sizeof(cases) / sizeof(cases[0])); }
