// A verifier of a file of receipts: checks FILE with the public key of KEY, and draws with the seeds of SEEDS.
#include <sortition/receipt_verifier.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

namespace client = sortition::client;

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  const auto key = client::ReadReceiptKey(argv[2]);
  std::ostringstream lines;
  lines << std::ifstream(argv[3]).rdbuf();
  const auto seeds = client::ParseSeeds(lines.str());
  if (!key.ok() || !seeds.ok()) {
    std::cout << (key.ok() ? seeds.status() : key.status()).message() << "\n";
    return 1;
  }
  client::ReceiptVerifier verifier({.keys = {*key}, .seeds = *seeds});
  std::ifstream file(argv[1], std::ios::binary);
  std::string piece(1 << 16, '\0');
  while (file.read(piece.data(), std::streamsize(piece.size())), file.gcount() > 0) {
    verifier.Read({piece.data(), size_t(file.gcount())});
  }
  const client::ReceiptFindings found = verifier.Finish();
  std::cout << found.counts.receipts << " receipts, " << found.counts.signed_receipts << " signed, "
            << found.counts.drawn << " drawn\n";
  for (const client::ReceiptProblem& problem : found.problems)
    std::cout << problem.name << ": " << problem.detail << "\n";
  return found.differs() ? 4 : 0;
}
