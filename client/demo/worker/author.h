// Writes stories, token by token: the model computes rows of logits, and the client has them sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/demo/byte_pair.h"
#include "client/demo/language_model.h"
#include "client/demo/worker/story.h"
#include "sortition/client.h"

namespace sortition::demo {

// The vocabulary and the model that were learned from the demo's corpus. Immutable; thread-safe.
struct Learned {
  BytePair vocabulary;
  LanguageModel model;
  uint64_t corpus_bytes = 0;
};
Learned LearnFromCorpus();

struct WritingOptions {
  uint32_t tokens = 120;       // upper bound for each story
  uint32_t row_width = 32768;  // elements of a row; those beyond the live vocabulary are padding
  bool receipts = false;       // the server makes receipts
};

struct WritingResult {
  std::vector<std::vector<uint32_t>> tokens;  // of each story, without its prompt and the end of text
  uint64_t bytes_sent = 0;                    // of logits
  std::vector<absl::Duration> steps;          // each from the first row sent to the last token
  absl::Duration model_time;                  // making rows
  absl::Duration sampling_time;               // steps, together
  std::string receipts;                       // all records
  std::string seeds;                          // a line a story that opens its seed
};

// Called with every drawn token, the end of text included.
using TokenDrawn = std::function<void(size_t story, const v1::DrawResult& draw)>;

// Writes all stories; blocks until the last one ends. The stories that have not ended are one batch. Returns the first
// error of a sequence or row.
absl::StatusOr<WritingResult> WriteStories(client::Client& client, const Learned& learned,
                                           std::span<const Story> stories, const WritingOptions& options,
                                           const TokenDrawn& drawn);

}  // namespace sortition::demo
