// The public face of the checks.
#include "sortition/receipt_verifier.h"

#include <utility>

#include "client/receipts/receipt_check.h"
#include "service/receipt/receipt_key.h"

namespace sortition::client {

absl::StatusOr<ReceiptPublicKey> ReadReceiptKey(const std::string& path) { return service::ReadPublicKey(path); }

ReceiptVerifier::ReceiptVerifier(Options options)
    : check_(std::make_unique<ReceiptCheck>(
          ReceiptCheck::Options{.keys = std::move(options.keys), .seeds = std::move(options.seeds)})) {}

ReceiptVerifier::~ReceiptVerifier() = default;

void ReceiptVerifier::Read(std::string_view bytes) { check_->Read(bytes); }

void ReceiptVerifier::EndFile() { check_->EndFile(); }

ReceiptFindings ReceiptVerifier::Finish() {
  check_->Finish();
  return check_->findings();
}

}  // namespace sortition::client
