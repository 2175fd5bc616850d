// Texts by a client: of a service, or of one in this process.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/archive/drawer.h"

namespace sortition::archive {
namespace {

// Longest wait for all last signatures. Those of a server that was killed do not come.
constexpr absl::Duration kLastSignatures = absl::Seconds(10);

class ClientDrawer final : public Drawer {
 public:
  ClientDrawer(client::Client* client, bool has_receipts) : client_(*client), has_receipts_(has_receipts) {}

  absl::Status Open(const Settings& settings, uint32_t text) override {
    client::SequenceOptions options = settings.OptionsOf(text);
    if (has_receipts_ && settings.Of(text).has_receipts()) {
      logs_.push_back(std::make_shared<client::ReceiptLog>(SaltOf(text)));
      options.receipts = logs_.back();
    }
    auto opened = client_.Open(std::move(options));
    if (!opened.ok()) return opened.status();
    sequences_.push_back(*std::move(opened));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<client::RowResult>> Step(v1::DType dtype, std::span<const uint32_t> sequences,
                                                      std::span<const client::Row> rows) override {
    client::Batch batch{dtype, Model::kVocabulary, {rows.begin(), rows.end()}};
    for (size_t i = 0; i < sequences.size(); ++i) batch.rows[i].sequence = sequences_[sequences[i]].get();
    return client_.Step(batch);
  }

  absl::StatusOr<Receipts> End() override {
    sequences_.clear();
    const absl::Time deadline = absl::Now() + kLastSignatures;
    Receipts receipts;
    for (const auto& log : logs_) {
      log->AwaitEnd(std::max(absl::ZeroDuration(), deadline - absl::Now()));
      receipts.records += log->Take();
    }
    return receipts;
  }

 private:
  client::Client& client_;
  const bool has_receipts_;
  std::vector<std::shared_ptr<client::ReceiptLog>> logs_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
};

}  // namespace

std::unique_ptr<Drawer> ByClient(client::Client* client, bool has_receipts) {
  return std::make_unique<ClientDrawer>(client, has_receipts);
}

}  // namespace sortition::archive
