// Options by chance, and a row of each kind that a step can have.
#include "tests/conformance/random_texts.h"

#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sortition/local_sequence.h"
#include "tests/stream/random_samplers.h"

namespace sortition {
namespace {

constexpr uint32_t kTexts = 16;
constexpr uint32_t kSteps = 16;
constexpr uint32_t kMostDrafts = 4;

using Random = std::mt19937_64;

uint32_t Below(Random* random, uint32_t end) { return static_cast<uint32_t>((*random)() % end); }

void SetHistoryOptions(Random* random, uint32_t vocabulary, v1::SamplingParameters* p) {
  const auto sometimes = [&] { return Below(random, 4) == 0; };
  const auto token = [&] { return Below(random, std::min(vocabulary, 8u)); };
  if (sometimes()) p->set_repetition_penalty(1 + service::Below(random, 0.5f));
  if (sometimes()) p->set_frequency_penalty(service::Below(random, 1));
  if (sometimes()) p->set_presence_penalty(service::Below(random, 1));
  if (sometimes()) {
    p->mutable_dry()->set_multiplier(0.5f);
    p->mutable_dry()->set_allowed_length(1);
  }
  if (sometimes()) p->set_no_repeat_ngram_size(2 + Below(random, 3));
  if (sometimes()) {
    v1::LogitBias& bias = *p->add_logit_bias();
    bias.set_token(token());
    bias.set_bias(service::Below(random, 4) - 2);
  }
  if (Below(random, 8) == 0) p->mutable_watermark()->set_key((*random)());
  if (Below(random, 8) == 0) {
    v1::Phase& phase = *p->add_phases();
    phase.add_end(token());
    phase.set_max_tokens(3 + Below(random, 4));
    phase.mutable_parameters()->set_temperature(0.4f);
  }
}

v1::SamplingParameters RandomParameters(Random* random, uint32_t vocabulary) {
  v1::SamplingParameters p;
  const auto sometimes = [&] { return Below(random, 4) == 0; };
  if (Below(random, 16) == 0) {
    p.set_temperature(0);
  } else if (Below(random, 8) == 0) {
    p.set_temperature(0.8f);
    p.mutable_mirostat()->set_version(1 + Below(random, 2));
    p.mutable_mirostat()->set_tau(2 + service::Below(random, 4));
  } else if (Below(random, 8) == 0) {
    p.mutable_adaptive_p()->set_target(service::Below(random, 1));
  } else {
    service::SetSamplers(random, &p);
  }
  if (Below(random, 2) == 0) SetHistoryOptions(random, vocabulary, &p);
  if (sometimes()) p.mutable_raw_logprobs()->set_top(Below(random, 6));
  if (Below(random, 2) == 0) p.mutable_processed_logprobs()->set_top(Below(random, 6));
  if (sometimes()) p.mutable_tempered_logprobs()->set_top(Below(random, 6));
  if (sometimes()) p.set_kept_log_mass(true);
  if (sometimes()) p.set_entropy(true);
  if (sometimes()) p.mutable_kept_set()->set_count(true);
  if (sometimes()) p.mutable_kept_set()->set_tokens(true);
  return p;
}

// A row with its memory.
struct RandomStep {
  RandomStep(Random* random, uint32_t vocabulary) {
    if (Below(random, 8) == 0) {
      for (uint32_t i = 1 + Below(random, kMostDrafts); i > 0; --i) tokens.push_back(Below(random, vocabulary));
      row.scored = tokens;
    } else if (Below(random, 4) == 0) {
      AddDrafts(random, vocabulary);
    }
    for (size_t i = row.positions() * vocabulary; i > 0; --i) {
      logits.push_back(float(int32_t(Below(random, 4096)) - 2048) / 256 + (Below(random, 16) == 0 ? 6.0f : 0.0f));
    }
    row.logits = logits.data();
    row.draw_salt = Below(random, 4) == 0 ? Below(random, 65'536) : 0;
    if (Below(random, 6) == 0) {
      mask.resize(row.positions() * ((vocabulary + 31) / 32));
      for (uint32_t& word : mask) word = uint32_t((*random)());
      row.allowed_bits = mask.data();
    }
  }
  RandomStep(const RandomStep&) = delete;
  RandomStep& operator=(const RandomStep&) = delete;

  void AddDrafts(Random* random, uint32_t vocabulary) {
    constexpr v1::VerifyMode kModes[] = {v1::VERIFY_MODE_GREEDY, v1::VERIFY_MODE_REJECTION, v1::VERIFY_MODE_COUPLED,
                                         v1::VERIFY_MODE_BLOCK};
    drafts.mode = kModes[Below(random, 4)];
    const uint32_t count = 1 + Below(random, kMostDrafts);
    for (uint32_t i = 0; i < count; ++i) tokens.push_back((Below(random, vocabulary / 4 + 1) + i) % vocabulary);
    if (drafts.mode == v1::VERIFY_MODE_COUPLED && Below(random, 2) == 0) {
      for (uint32_t i = 0; i < count; ++i) parents.push_back(int32_t(Below(random, i + 1)) - 1);
    }
    if (drafts.mode == v1::VERIFY_MODE_BLOCK || (drafts.mode == v1::VERIFY_MODE_REJECTION && Below(random, 2) == 0)) {
      for (const uint32_t token : tokens) {
        v1::SparseProbabilities& sparse = probabilities.emplace_back();
        sparse.add_tokens(token);
        sparse.add_probabilities(0.625f);
        if (vocabulary == 1) sparse.set_probabilities(0, 1);
        if (vocabulary > 1) sparse.add_tokens((token + 1) % vocabulary);
        if (vocabulary > 1) sparse.add_probabilities(0.375f);
      }
    }
    drafts.tokens = tokens;
    drafts.parents = parents;
    drafts.sparse_probabilities = probabilities;
    row.drafts = &drafts;
  }

  client::Row row;
  std::vector<float> logits;
  std::vector<uint32_t> mask, tokens;
  std::vector<int32_t> parents;
  std::vector<v1::SparseProbabilities> probabilities;
  client::Drafts drafts;
};

// Returns a result as text. A service's result has a checkpoint besides.
std::string TextOf(client::RowResult result) {
  if (const auto* error = std::get_if<client::RowError>(&result)) {
    return absl::StrCat("error ", int(error->code), " reason ", int(error->reason));
  }
  if (auto* draw = std::get_if<v1::DrawResult>(&result)) {
    draw->clear_checkpoint();
    return draw->SerializeAsString();
  }
  if (auto* verified = std::get_if<v1::VerifyResult>(&result)) {
    verified->clear_checkpoint();
    return verified->SerializeAsString();
  }
  auto& score = std::get<v1::ScoreResult>(result);
  score.clear_checkpoint();
  return score.SerializeAsString();
}

uint32_t RandomVocabulary(Random* random) {
  return Below(random, 16) == 0 ? 1000 + Below(random, 12'000) : 16 + Below(random, 400);
}

}  // namespace

absl::StatusOr<uint64_t> CompareTexts(uint64_t seed, client::Client* client,
                                      const std::function<void(const std::string& difference)>& differs) {
  Random random(seed);
  const uint32_t vocabulary = RandomVocabulary(&random);
  std::vector<std::unique_ptr<client::Sequence>> served;
  std::vector<std::unique_ptr<client::LocalSequence>> local;
  for (uint32_t text = 0; text < kTexts; ++text) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat("random ", seed, " ", text);
    options.seed = random();
    options.vocabulary_size = vocabulary;
    options.parameters = RandomParameters(&random, vocabulary);
    for (uint32_t i = Below(&random, 12); i > 0; --i)
      options.prompt.push_back(Below(&random, std::min(vocabulary, 8u)));
    auto ours = client::LocalSequence::Open(options);
    auto theirs = client->Open(options);
    if (absl::IsUnavailable(theirs.status()) || absl::IsDeadlineExceeded(theirs.status())) return theirs.status();
    if (ours.status().code() != theirs.status().code()) {
      differs(absl::StrCat(options.request_id, ": opens with ", ours.status().ToString(), " here, and with ",
                           theirs.status().ToString(), " there"));
    }
    if (!ours.ok() || !theirs.ok()) continue;
    local.push_back(*std::move(ours));
    served.push_back(*std::move(theirs));
  }
  uint64_t rows = 0;
  for (uint32_t step = 0; step < kSteps && !local.empty(); ++step) {
    std::vector<std::unique_ptr<RandomStep>> steps;
    client::Batch batch{v1::DTYPE_F32, vocabulary, {}};
    for (const auto& sequence : served) {
      steps.push_back(std::make_unique<RandomStep>(&random, vocabulary));
      batch.rows.push_back(steps.back()->row);
      batch.rows.back().sequence = sequence.get();
    }
    auto results = client->Step(batch);
    if (!results.ok()) return results.status();
    for (size_t i = 0; i < local.size(); ++i) {
      const client::RowResult ours = local[i]->Step(v1::DTYPE_F32, batch.rows[i]);
      if (const auto* error = std::get_if<client::RowError>(&(*results)[i]);
          error != nullptr && absl::IsUnavailable(client::ToStatus(*error))) {
        return client::ToStatus(*error);
      }
      ++rows;
      if (TextOf(ours) == TextOf((*results)[i])) continue;
      differs(absl::StrCat("seed ", seed, ", step ", step, ", row ", i, " of vocabulary ", vocabulary));
    }
  }
  return rows;
}

}  // namespace sortition
