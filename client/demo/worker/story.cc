// Defines the eight kinds of stories.
#include "client/demo/worker/story.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sortition::demo {
namespace {

Story Greedy() {
  Story story{"greedy", "Take six onions", {}};
  story.parameters.set_temperature(0);
  return story;
}

Story Warm(uint32_t choice_index) {
  Story story{choice_index == 0 ? "warm" : "warm, another choice", "Dear Osric,\n", {}};
  story.parameters.set_temperature(0.8f);
  story.choice_index = choice_index;
  return story;
}

Story Nucleus() {
  Story story{"nucleus", "Once there was a", {}};
  story.parameters.set_temperature(0.9f);
  story.parameters.set_top_p(0.9f);
  return story;
}

Story Penalised() {
  Story story{"penalised", "The old woman said", {}};
  story.parameters.set_min_p(0.03f);
  story.parameters.set_repetition_penalty(1.15f);
  story.parameters.set_frequency_penalty(0.15f);
  return story;
}

Story FewChoices() {
  Story story{"few choices", "The wind has gone round", {}};
  story.parameters.set_top_k(12);
  story.parameters.set_presence_penalty(0.3f);
  return story;
}

Story Watched() {
  Story story{"watched", "The bear looked at the", {}};
  story.parameters.set_temperature(0.7f);
  story.parameters.set_top_k(40);
  story.parameters.mutable_processed_logprobs()->set_top(3);
  return story;
}

// Favours words of the sea, and bans the goat.
Story Biased(const BytePair& vocabulary) {
  Story story{"biased", "Good evening,", {}};
  story.parameters.set_temperature(0.8f);
  for (const char* word : {" sea", " light", " lamp", " moon"}) {
    v1::LogitBias& bias = *story.parameters.add_logit_bias();
    bias.set_token(vocabulary.Encode(word)[0]);
    bias.set_bias(2);
  }
  story.parameters.add_banned_token_ids(vocabulary.Encode(" goat")[0]);
  return story;
}

}  // namespace

std::vector<Story> MakeStories(uint32_t count, const BytePair& vocabulary) {
  const std::vector<Story> kinds = {Watched(), Greedy(),    Warm(0),      Warm(1),
                                    Nucleus(), Penalised(), FewChoices(), Biased(vocabulary)};
  std::vector<Story> stories;
  for (uint32_t i = 0; i < count; ++i) {
    stories.push_back(kinds[i % kinds.size()]);
    // The two warm ones share a seed and differ by the choice index.
    stories.back().seed = 2024 + i / kinds.size();
  }
  return stories;
}

std::string DescribeParameters(const v1::SamplingParameters& parameters) {
  std::vector<std::string> parts;
  if (parameters.has_temperature()) parts.push_back(absl::StrCat("temperature ", parameters.temperature()));
  if (parameters.has_top_k()) parts.push_back(absl::StrCat("top-k ", parameters.top_k()));
  if (parameters.has_top_p()) parts.push_back(absl::StrCat("top-p ", parameters.top_p()));
  if (parameters.has_min_p()) parts.push_back(absl::StrCat("min-p ", parameters.min_p()));
  if (parameters.has_repetition_penalty())
    parts.push_back(absl::StrCat("repetition ", parameters.repetition_penalty()));
  if (parameters.has_frequency_penalty()) parts.push_back(absl::StrCat("frequency ", parameters.frequency_penalty()));
  if (parameters.has_presence_penalty()) parts.push_back(absl::StrCat("presence ", parameters.presence_penalty()));
  if (parameters.logit_bias_size() > 0) parts.push_back(absl::StrCat(parameters.logit_bias_size(), " biased tokens"));
  if (parameters.banned_token_ids_size() > 0)
    parts.push_back(absl::StrCat(parameters.banned_token_ids_size(), " banned token"));
  if (parameters.has_processed_logprobs())
    parts.push_back(absl::StrCat("logprobs with top ", parameters.processed_logprobs().top()));
  return absl::StrJoin(parts, ", ");
}

}  // namespace sortition::demo
