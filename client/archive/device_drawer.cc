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

// The chain of receipts of one text.
class TextReceipts {
 public:
  TextReceipts(uint32_t text, const LocalText& sequence, const client::SequenceOptions& options) {
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
    const std::string body = EncodeBody(opening);
    AppendRecord(service::ReceiptRecord::kOpening, body, &records_);
    head_.hash = service::HashBytes(body);
    head_.chain = service::ChainIdOf(head_.hash);
    head_.has_ended = true;
  }

  void Add(std::vector<service::Receipt> receipts) {
    ++steps_;
    for (service::Receipt& receipt : receipts) {
      receipt.step_id = steps_;
      receipt.chain = head_.chain;
      receipt.index = head_.receipts++;
      receipt.previous = head_.hash;
      head_.hash = service::HashBytes(AppendRecord(receipt, &records_));
    }
  }

  const std::string& records() const { return records_; }
  const service::ReceiptHead& head() const { return head_; }

 private:
  std::string records_;
  service::ReceiptHead head_;
  uint64_t steps_ = 0;
};

struct Text {
  std::unique_ptr<LocalText> sequence;
  std::optional<TextReceipts> receipts;
};

class DeviceDrawer final : public Drawer {
 public:
  explicit DeviceDrawer(devices::Device* device) : device_(*device) {}

  absl::Status Open(const Settings& settings) {
    for (uint32_t text = 0; text < settings.texts(); ++text) {
      client::SequenceOptions options = settings.OptionsOf(text);
      if (settings.Of(text).has_receipts()) options.receipts = std::make_shared<client::ReceiptLog>();
      const auto prompt = static_cast<uint32_t>(options.prompt.size());
      auto opened = LocalText::OpenAt(options, options.seed, {options.prompt, prompt, prompt});
      if (const auto* error = std::get_if<client::RowError>(&opened)) return client::ToStatus(*error);
      Text& made = texts_.emplace_back();
      made.sequence = std::get<std::unique_ptr<LocalText>>(std::move(opened));
      if (options.receipts != nullptr) made.receipts.emplace(text, *made.sequence, options);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<client::RowResult>> Step(v1::DType dtype, std::span<const uint32_t> texts,
                                                      std::span<const client::Row> rows) override {
    std::vector<client::RowResult> results(texts.size());
    std::vector<Begun> begun;
    for (size_t i = 0; i < texts.size(); ++i) {
      auto requests = texts_[texts[i]].sequence->Begin(dtype, rows[i]);
      if (auto* error = std::get_if<client::RowError>(&requests)) {
        results[i] = std::move(*error);
      } else {
        begun.push_back({i, std::get<LocalText::Requests>(std::move(requests))});
      }
    }
    while (!begun.empty()) {
      if (absl::Status status = Answer(texts, &begun); !status.ok()) return status;
      std::vector<Begun> unfinished;
      for (Begun& one : begun) {
        if (!one.requests.empty()) {
          unfinished.push_back(std::move(one));
          continue;
        }
        Text& text = texts_[texts[one.index]];
        results[one.index] = text.sequence->End();
        if (text.receipts && !std::holds_alternative<client::RowError>(results[one.index])) {
          text.receipts->Add(text.sequence->last_receipts());
        }
      }
      begun = std::move(unfinished);
    }
    return results;
  }

  absl::StatusOr<Receipts> End() override {
    Receipts receipts;
    service::ReceiptSignature signature;
    signature.time = static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
    for (const Text& text : texts_) {
      if (!text.receipts) continue;
      receipts.records += text.receipts->records();
      signature.heads.push_back(text.receipts->head());
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
  absl::Status Answer(std::span<const uint32_t> texts, std::vector<Begun>* begun) {
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
      one.requests = texts_[texts[one.index]].sequence->Continue(left.first(count));
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

absl::StatusOr<std::unique_ptr<Drawer>> OnDevice(const Settings& settings, devices::Device* device) {
  auto drawer = std::make_unique<DeviceDrawer>(device);
  if (absl::Status status = drawer->Open(settings); !status.ok()) return status;
  return drawer;
}

}  // namespace sortition::archive
