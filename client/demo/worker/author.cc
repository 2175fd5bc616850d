// The inference loop of the demo.
#include "client/demo/worker/author.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/demo/corpus.h"

namespace sortition::demo {
namespace {

constexpr uint32_t kMaxTokens = 4095;
constexpr absl::Duration kSignTimeout = absl::Seconds(10);

// A story in progress.
struct Draft {
  std::shared_ptr<client::ReceiptLog> receipts;  // null without them
  std::unique_ptr<client::Sequence> sequence;
  std::vector<uint32_t> context;  // prompt and output
  bool over = false;
};

absl::StatusOr<Draft> Begin(client::Client& client, const Learned& learned, const Story& story, size_t index,
                            const WritingOptions& options) {
  Draft draft;
  draft.context = learned.vocabulary.Encode(story.prompt);
  client::SequenceOptions sequence;
  sequence.request_id = absl::StrCat("story ", index + 1);
  sequence.parameters = story.parameters;
  sequence.seed = story.seed;
  sequence.choice_index = story.choice_index;
  sequence.vocabulary_size = options.row_width;
  sequence.live_vocabulary_size = learned.model.live_vocabulary();
  sequence.model = "demo";
  sequence.prompt = draft.context;
  if (options.receipts) sequence.receipts = draft.receipts = std::make_shared<client::ReceiptLog>();
  auto opened = client.Open(std::move(sequence));
  if (!opened.ok()) return opened.status();
  draft.sequence = *std::move(opened);
  return draft;
}

}  // namespace

Learned LearnFromCorpus() {
  const std::vector<std::string_view> texts = CorpusTexts();
  BytePair vocabulary = BytePair::Learn(texts, kMaxTokens);
  std::vector<std::vector<uint32_t>> encoded;
  uint64_t bytes = 0;
  for (std::string_view text : texts) {
    encoded.push_back(vocabulary.Encode(text));
    bytes += text.size();
  }
  LanguageModel model = LanguageModel::Train(encoded, vocabulary.size());
  return Learned{std::move(vocabulary), std::move(model), bytes};
}

absl::StatusOr<WritingResult> WriteStories(client::Client& client, const Learned& learned,
                                           std::span<const Story> stories, const WritingOptions& options,
                                           const TokenDrawn& drawn) {
  std::vector<Draft> drafts;
  for (size_t i = 0; i < stories.size(); ++i) {
    auto draft = Begin(client, learned, stories[i], i, options);
    if (!draft.ok()) return draft.status();
    drafts.push_back(*std::move(draft));
  }
  WritingResult result;
  result.tokens.resize(stories.size());
  std::vector<uint16_t> rows(stories.size() * options.row_width);
  for (uint32_t step = 0; step < options.tokens; ++step) {
    const absl::Time start = absl::Now();
    client::Batch batch{v1::DTYPE_BF16, options.row_width, {}};
    std::vector<size_t> writing;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (drafts[i].over) continue;
      const std::span<uint16_t> row(rows.data() + writing.size() * options.row_width, options.row_width);
      learned.model.Logits(drafts[i].context, row);
      batch.rows.push_back({drafts[i].sequence.get(), row.data()});
      writing.push_back(i);
    }
    if (writing.empty()) break;
    const absl::Time sent = absl::Now();
    const auto results = client.Step(batch);
    if (!results.ok()) return results.status();
    result.model_time += sent - start;
    result.steps.push_back(absl::Now() - sent);
    result.sampling_time += result.steps.back();
    result.bytes_sent += writing.size() * options.row_width * sizeof(uint16_t);
    for (size_t row = 0; row < writing.size(); ++row) {
      const size_t story = writing[row];
      if (const auto* error = std::get_if<client::RowError>(&(*results)[row])) return client::ToStatus(*error);
      const auto& draw = std::get<v1::DrawResult>((*results)[row]);
      drawn(story, draw);
      if (draw.token() == learned.model.end_of_text()) {
        drafts[story].over = true;
      } else {
        drafts[story].context.push_back(draw.token());
        result.tokens[story].push_back(draw.token());
      }
    }
  }
  for (Draft& draft : drafts) {
    if (draft.receipts == nullptr) continue;
    draft.sequence.reset();
    if (!draft.receipts->AwaitEnd(kSignTimeout)) return absl::DeadlineExceededError("the last receipts are not signed");
    result.receipts += draft.receipts->Take();
    result.seeds += draft.receipts->SeedLine() + "\n";
  }
  return result;
}

}  // namespace sortition::demo
