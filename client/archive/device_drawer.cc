// Texts in this process: the service's code makes the requests and the receipts, and the device answers the requests.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "client/archive/drawer.h"
#include "client/local/local_text.h"
#include "devices/run_batch.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/features.h"
#include "kernels/law/version.h"
#include "service/entropy.h"
#include "service/receipt/receipt_key.h"
#include "service/receipt/record.h"
#include "service/wire/receipt_words.h"

namespace sortition::archive {
namespace {

using client::LocalText;

// Returns the opening of a text's chain.
service::ReceiptOpening OpeningOf(uint32_t text, const LocalText& sequence, const client::SequenceOptions& options) {
  service::ReceiptOpening opening;
  opening.law_version = law::kLawVersion;
  opening.vocabulary = opening.live_vocabulary = sequence.vocabulary_size();
  opening.has_watermark = options.parameters.has_watermark();
  const std::string nonce = NonceOf(text), salt = SaltOf(text);
  std::copy(nonce.begin(), nonce.end(), opening.nonce.begin());
  service::ReceiptSalt salt_bytes;
  std::copy(salt.begin(), salt.end(), salt_bytes.begin());
  opening.commitment = service::CommitmentOf(sequence.seed(), salt_bytes);
  opening.request_id = options.request_id;
  opening.parameters = service::ReceiptWords(options.parameters);
  return opening;
}

struct Text {
  std::unique_ptr<LocalText> sequence;
  uint64_t steps = 0;
  std::optional<service::ReceiptHead> head;  // of its chain, if it has one
  std::string records;
};

class DeviceDrawer final : public Drawer {
 public:
  explicit DeviceDrawer(devices::Device* device) : device_(*device) {}

  absl::Status Open(const Settings& settings, uint32_t number) override {
    client::SequenceOptions options = settings.OptionsOf(number);
    const bool has_receipts = settings.Of(number).has_receipts();
    if (has_receipts) options.receipts = std::make_shared<client::ReceiptLog>();
    const auto prompt = static_cast<uint32_t>(options.prompt.size());
    auto opened = LocalText::OpenAt(options, options.seed, {options.prompt, prompt, prompt});
    if (const auto* error = std::get_if<client::RowError>(&opened)) return client::ToStatus(*error);
    Text& text = texts_.emplace_back();
    text.sequence = std::get<std::unique_ptr<LocalText>>(std::move(opened));
    if (has_receipts) text.head = BeginChain(OpeningOf(number, *text.sequence, options), &text.records);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<client::RowResult>> Step(v1::DType dtype, std::span<const uint32_t> sequences,
                                                      std::span<const client::Row> rows) override {
    std::vector<client::RowResult> results(sequences.size());
    std::vector<Begun> begun;
    for (size_t i = 0; i < sequences.size(); ++i) {
      auto requests = texts_[sequences[i]].sequence->Begin(dtype, rows[i]);
      if (auto* error = std::get_if<client::RowError>(&requests)) {
        results[i] = std::move(*error);
      } else {
        begun.push_back({i, std::get<LocalText::Requests>(std::move(requests))});
      }
    }
    while (!begun.empty()) {
      if (absl::Status status = Answer(sequences, &begun); !status.ok()) return status;
      std::vector<Begun> unfinished;
      for (Begun& one : begun) {
        if (!one.requests.empty()) {
          unfinished.push_back(std::move(one));
          continue;
        }
        Text& text = texts_[sequences[one.index]];
        results[one.index] = text.sequence->End();
        if (!text.head || std::holds_alternative<client::RowError>(results[one.index])) continue;
        std::vector<service::Receipt> receipts = text.sequence->last_receipts();
        ++text.steps;
        for (service::Receipt& receipt : receipts) receipt.step_id = text.steps;
        ContinueChain(std::move(receipts), &*text.head, &text.records);
      }
      begun = std::move(unfinished);
    }
    return results;
  }

  absl::StatusOr<Receipts> End() override {
    Receipts receipts;
    service::ReceiptSignature signature;
    signature.time = static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
    for (Text& text : texts_) {
      if (!text.head) continue;
      receipts.records += text.records;
      text.head->has_ended = true;
      signature.heads.push_back(*text.head);
    }
    // The key signs this archive alone.
    std::array<uint8_t, 32> secret;
    for (size_t i = 0; i < secret.size(); i += sizeof(uint64_t)) {
      const uint64_t drawn = service::SystemEntropy().Draw();
      std::memcpy(secret.data() + i, &drawn, sizeof(drawn));
    }
    const auto key = service::ReceiptKey::OfBytes(secret);
    key->Sign(&signature);
    AppendRecord(service::ReceiptRecord::kSignature, EncodeBody(signature), &receipts.signature);
    receipts.rows_by_cpu = rows_by_cpu_;
    receipts.public_key.assign(key->public_key().begin(), key->public_key().end());
    return receipts;
  }

 private:
  // A row that has begun: its index in the step, and the next requests for it.
  struct Begun {
    size_t index = 0;
    LocalText::Requests requests;
  };

  // Has the device answer all requests, and replaces them with the next ones. As a server's router does, it gives the
  // device no row that asks for a feature that it lacks.
  absl::Status Answer(std::span<const uint32_t> sequences, std::vector<Begun>* begun) {
    std::vector<devices::DeviceRow> rows;
    std::vector<size_t> places;  // of these rows among all
    std::vector<kernels::RowOutput> outputs;
    for (const Begun& one : *begun) {
      for (const kernels::RowRequest& request : one.requests) {
        kernels::RowOutput& output = outputs.emplace_back();
        if ((kernels::FeaturesOf(request) & ~device_.description().features) != 0) {
          kernels::cpu::SampleRow(request, &scratch_, &output);
          ++rows_by_cpu_;
          continue;
        }
        places.push_back(outputs.size() - 1);
        devices::DeviceRow& row = rows.emplace_back();
        row.request = request;
        row.segments.push_back(
            {static_cast<const std::byte*>(request.logits), Model::kVocabulary * kernels::ElementBytes(request.dtype)});
      }
    }
    for (size_t first = 0; first < rows.size(); first += device_.description().max_batch_rows) {
      const size_t end = std::min<size_t>(rows.size(), first + device_.description().max_batch_rows);
      devices::BatchOutput output =
          devices::RunBatch(&device_, {rows.begin() + ptrdiff_t(first), rows.begin() + ptrdiff_t(end)});
      if (!output.status.ok()) return output.status;
      for (size_t i = first; i < end; ++i) outputs[places[i]] = std::move(output.outputs[i - first]);
    }
    std::span<kernels::RowOutput> left = outputs;
    for (Begun& one : *begun) {
      const size_t count = one.requests.size();
      one.requests = texts_[sequences[one.index]].sequence->Continue(left.first(count));
      left = left.subspan(count);
    }
    return absl::OkStatus();
  }

  devices::Device& device_;
  kernels::cpu::Scratch scratch_;
  uint64_t rows_by_cpu_ = 0;
  std::vector<Text> texts_;
};

}  // namespace

std::unique_ptr<Drawer> OnDevice(devices::Device* device) { return std::make_unique<DeviceDrawer>(device); }

}  // namespace sortition::archive
