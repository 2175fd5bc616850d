// Makes chains of receipts from random rows by the law's reference, and damages them in each way that has a name.
#include "tests/verifier/receipt_vectors.h"

#include <bit>
#include <cstring>
#include <functional>
#include <random>

#include "absl/strings/escaping.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/json_text.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "service/receipt/receipt_key.h"
#include "service/request/parameters.h"
#include "service/request/receipt_words.h"

namespace sortition::testing {
namespace {

using cli::SeedOpening;
using service::Receipt;
using service::ReceiptMethod;
using service::ReceiptRecord;

constexpr uint32_t kVocabulary = 40;
constexpr uint64_t kTime = 1'800'000'000'000;

std::shared_ptr<const service::ReceiptKey> Key(uint8_t byte) {
  std::array<uint8_t, 32> bytes;
  bytes.fill(byte);
  return service::ReceiptKey::OfBytes(bytes);
}

// A chain as a server writes it, of rows with random logits.
class Chain {
 public:
  Chain(std::string name, uint64_t seed, v1::SamplingParameters parameters, uint32_t law_version = law::kLawVersion)
      : parameters_(std::move(parameters)), random_(seed) {
    seed_.seed = seed;
    seed_.salt.fill(static_cast<uint8_t>(seed));
    opening_.law_version = law_version;
    opening_.vocabulary = kVocabulary + 8;
    opening_.live_vocabulary = kVocabulary;
    opening_.choice_index = 3;
    opening_.nonce.fill(static_cast<uint8_t>(name.size()));
    opening_.commitment = service::CommitmentOf(seed, seed_.salt);
    opening_.request_id = std::move(name);
    opening_.parameters = service::ReceiptWords(parameters_);
    opening_.has_watermark = parameters_.has_watermark();
    spec_.vocabulary = opening_.vocabulary;
    spec_.live_vocabulary = kVocabulary;
    spec_.choice_index = opening_.choice_index;
    SORTITION_CHECK(!service::CompileParameters(parameters_, service::Limits(), "parameters", &spec_));
    spec_.parameters.processed_logprob = spec_.parameters.kept_tokens = true;
    const std::string body = EncodeBody(opening_);
    head_.hash = service::HashOf(body);
    head_.chain = service::ChainIdOf(head_.hash);
  }

  std::string Opening() const { return Record(ReceiptRecord::kOpening, EncodeBody(opening_)); }

  // Draws a token and returns its receipt, after `change` has changed its fields.
  using Change = std::function<void(Receipt*)>;
  std::string Draw(const Change& change = nullptr) {
    std::vector<float> logits(kVocabulary);
    for (float& x : logits) x = float(int64_t(random_() % 8192) - 4096) / 1024;
    const uint32_t position = 7 + static_cast<uint32_t>(head_.receipts);
    kernels::RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = kVocabulary;
    request.parameters = &spec_.parameters;
    request.noise = {seed_.seed, position, opening_.choice_index | 2u << 16};
    request.sampler_state = kernels::InitialSamplerState(spec_.parameters.chain);
    const kernels::RowOutput output = law::SampleRowReference(request);
    Receipt receipt;
    receipt.chain = head_.chain;
    receipt.previous = head_.hash;
    receipt.index = head_.receipts;
    receipt.step_id = head_.receipts + 1;
    receipt.position = position;
    if (spec_.stateful()) receipt.history_hash = random_();
    receipt.lists_kept = true;
    receipt.method = spec_.parameters.greedy ? ReceiptMethod::kGreedy : ReceiptMethod::kRace;
    receipt.draw_salt = 2;
    receipt.temperature = output.temperature;
    receipt.token = output.token;
    receipt.logprob_bits = std::bit_cast<uint32_t>(law::Logprob(output.processed, output.processed.chosen.bits,
                                                                law::ProcessedTemperature(spec_.parameters, output)));
    receipt.kept_count = output.kept;
    receipt.kept = output.kept_tokens;
    if (change) change(&receipt);
    const std::string body = EncodeBody(receipt);
    ++head_.receipts;
    head_.hash = service::HashOf(body);
    return Record(ReceiptRecord::kReceipt, body);
  }
  std::string Draws(int count) {
    std::string records;
    for (int i = 0; i < count; ++i) records += Draw();
    return records;
  }

  service::ReceiptHead Head(bool has_ended) const {
    service::ReceiptHead head = head_;
    head.has_ended = has_ended;
    return head;
  }
  std::string id() const { return cli::Hex(head_.chain); }
  const SeedOpening& seed() const { return seed_; }

  static std::string Record(ReceiptRecord type, const std::string& body) {
    std::string record;
    AppendRecord(type, body, &record);
    return record;
  }

 private:
  const v1::SamplingParameters parameters_;
  std::mt19937_64 random_;
  SeedOpening seed_;
  service::ReceiptOpening opening_;
  service::SequenceSpec spec_;
  service::ReceiptHead head_;
};

std::string Sign(std::vector<service::ReceiptHead> heads, uint8_t key = 1, bool damages = false) {
  service::ReceiptSignature signature;
  signature.time = kTime;
  signature.heads = std::move(heads);
  Key(key)->Sign(&signature);
  if (damages) signature.signature[5] ^= 1;
  return Chain::Record(ReceiptRecord::kSignature, EncodeBody(signature));
}

v1::SamplingParameters Parameters(const std::function<void(v1::SamplingParameters*)>& set) {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0.8f);
  parameters.set_top_k(8);
  set(&parameters);
  return parameters;
}
v1::SamplingParameters Plain() {
  return Parameters([](v1::SamplingParameters*) {});
}

using Set = std::function<void(v1::SamplingParameters*)>;
struct NamedSet {
  const char* name;
  Set set;
};

const std::vector<NamedSet>& Sets() {
  static const auto* const sets = new std::vector<NamedSet>{
      {"plain", [](auto*) {}},
      {"greedy", [](auto* p) { p->set_temperature(0); }},
      {"unfiltered", [](auto* p) { p->set_top_k(0); }},
      {"min_p_top_p", [](auto* p) { p->set_top_k(0), p->set_min_p(0.05f), p->set_top_p(0.9f); }},
      {"llama_cpp",
       [](auto* p) {
         p->mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
         p->set_typical_p(0.9f);
       }},
      {"explicit",
       [](auto* p) {
         for (const char* name : {"top_k", "top_a", "temperature"}) {
           p->mutable_chain()->mutable_explicit_()->add_samplers(name);
         }
         p->set_top_a(0.1f);
       }},
      {"dynamic_temperature", [](auto* p) { p->mutable_dynamic_temperature()->set_range(0.5f); }},
      {"smoothing", [](auto* p) { p->mutable_quadratic_smoothing()->set_factor(0.3f); }},
      {"xtc",
       [](auto* p) {
         p->mutable_xtc()->set_probability(0.9f);
         p->mutable_xtc()->set_threshold(0.05f);
       }},
      {"mirostat", [](auto* p) { p->mutable_mirostat()->set_version(2); }},
      {"lists",
       [](auto* p) {
         p->add_logit_bias()->set_token(3);
         p->mutable_logit_bias(0)->set_bias(2.5f);
         p->add_allowed_token_ids(3);
         p->add_allowed_token_ids(5);
         p->add_bad_words()->add_tokens(1);
         p->add_stop_token_ids(2);
         p->set_presence_penalty(0.5f);
         p->mutable_penalty_scope()->set_frequency_counts_prompt(true);
       }},
  };
  return *sets;
}

// Records in the order in which they are made: operands of << are evaluated from left to right.
struct Records {
  std::string bytes;
  operator std::string() const { return bytes; }
};
Records operator<<(Records records, const std::string& more) {
  records.bytes += more;
  return records;
}

class Maker {
 public:
  std::vector<ReceiptVector> Make() {
    for (const NamedSet& set : Sets()) {
      Chain chain(set.name, 11, Parameters(set.set));
      Add(set.name, Records() << chain.Opening() << chain.Draws(5) << Sign({chain.Head(true)}), {}, 5, 5, 5);
      last().seeds = {chain.seed()};
    }
    Right();
    Damaged();
    Draws();
    return std::move(vectors_);
  }

 private:
  ReceiptVector& last() { return vectors_.back(); }
  void Add(std::string name, std::string records, std::vector<ExpectedProblem> problems, uint64_t receipts,
           uint64_t signed_receipts, uint64_t drawn) {
    vectors_.push_back({std::move(name),
                        std::move(records),
                        {Key(1)->public_key()},
                        {},
                        std::move(problems),
                        receipts,
                        signed_receipts,
                        drawn});
  }

  void Right() {
    Chain a("a", 1, Plain());
    Chain b("b", 2, Plain());
    std::string mixed = Records() << a.Opening() << a.Draws(2) << b.Opening() << b.Draws(1) << a.Draws(1);
    mixed += (Records() << Sign({a.Head(false), b.Head(false)}) << b.Draws(2) << Sign({b.Head(true)})).bytes;
    Add("two_chains", mixed, {}, 6, 6, 6);
    last().seeds = {a.seed(), b.seed()};

    Chain unsigned_end("a", 1, Plain());
    std::string records = Records() << unsigned_end.Opening() << unsigned_end.Draws(2)
                                    << Sign({unsigned_end.Head(false)});
    Add("unsigned_end", Records() << records << unsigned_end.Draws(3), {}, 5, 2, 0);

    Chain middle("a", 1, Plain());
    middle.Draws(4);
    Add("rotated", Records() << middle.Opening() << middle.Draws(2) << Sign({middle.Head(true)}), {}, 2, 2, 2);
    last().seeds = {middle.seed()};

    Chain keys("a", 1, Plain());
    records = Records() << keys.Opening() << keys.Draws(1) << Sign({keys.Head(false)}) << keys.Draws(1);
    Add("two_keys", Records() << records << Sign({keys.Head(false)}, 2), {}, 2, 2, 0);
    last().keys.push_back(Key(2)->public_key());

    Chain again("a", 1, Plain());
    records = Records() << again.Opening() << again.Draws(1) << again.Opening() << again.Draws(1);
    Add("opening_again", Records() << records << Sign({again.Head(false)}), {}, 2, 2, 0);
  }

  void Damaged() {
    const auto chain = [] { return Chain("a", 1, Plain()); };
    {
      Chain a = chain();
      std::string records = Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}) << a.Draw();
      records.resize(records.size() - 7);
      Add("cut_record", records, {{"cut_record"}}, 2, 2, 0);
    }
    {
      Chain a = chain();
      const std::string begin = Records() << a.Opening() << a.Draw();
      a.Draw();
      Add("receipt_left_out", Records() << begin << a.Draws(2) << Sign({a.Head(false)}), {{"broken_chain", a.id(), 2}},
          3, 0, 0);
    }
    {
      Chain a = chain();
      const std::string opening = a.Opening();
      const std::string first = a.Draw(), second = a.Draw(), third = a.Draw();
      Add("reordered", Records() << opening << first << third << second << Sign({a.Head(false)}),
          {{"broken_chain", a.id(), 2}, {"broken_chain", a.id(), 1}, {"wrong_head", a.id(), 3}}, 3, 0, 0);
    }
    {
      Chain a = chain();
      Chain b("b", 2, Plain());
      const std::string opening = Records() << a.Opening() << a.Draw();
      b.Draw();
      // A receipt of another sequence that says it is of this one.
      const std::string foreign = b.Draw([&](Receipt* receipt) { receipt->chain = a.Head(false).chain; });
      Add("spliced", Records() << opening << foreign << Sign({a.Head(false)}),
          {{"broken_chain", a.id(), 1}, {"wrong_head", a.id(), 1}}, 2, 0, 0);
    }
    {
      Chain a = chain();
      std::string records = Records() << a.Opening() << a.Draw();
      const size_t byte = records.size() - 1;
      records += (Records() << a.Draws(1) << Sign({a.Head(false)})).bytes;
      records[byte] ^= 1;
      Add("byte_changed", records, {{"broken_chain", a.id(), 1}}, 2, 0, 0);
      last().problems.insert(last().problems.begin(), {"wrong_logprob", a.id(), 0});
    }
    {
      Chain a = chain();
      Add("other_key", Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}, 2), {{"unknown_key"}}, 2, 0, 0);
    }
    {
      Chain a = chain();
      Add("wrong_signature", Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}, 1, true),
          {{"wrong_signature"}}, 2, 0, 0);
    }
    {
      Chain a("a", 1, Plain(), 2);
      Add("other_law", Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}), {{"unknown_law", a.id()}}, 2, 2,
          0);
      last().seeds = {a.seed()};
    }
    {
      Chain a = chain();
      Add("no_opening", Records() << a.Draws(1) << Sign({a.Head(false)}),
          {{"unknown_chain", a.id(), 0}, {"unknown_chain", a.id()}}, 1, 0, 0);
    }
    {
      Chain a = chain();
      std::string type = Chain::Record(ReceiptRecord::kReceipt, "abc");
      type[0] = 9;
      Add("unknown_type", Records() << a.Opening() << type << a.Draws(1) << Sign({a.Head(false)}), {{"bad_record"}}, 1,
          1, 0);
    }
    {
      Chain a = chain();
      std::string records = Records() << a.Opening() << a.Draws(1) << Sign({a.Head(false)});
      records += (Records() << std::string("\2\0\0\0\2", 5) << a.Draws(1)).bytes;
      Add("long_record", records, {{"bad_record"}}, 1, 1, 0);
    }
    {
      Chain a = chain();
      const auto swap = [](Receipt* receipt) { std::swap(receipt->kept[0], receipt->kept[1]); };
      Add("kept_descends", Records() << a.Opening() << a.Draw(swap), {{"bad_record"}}, 1, 0, 0);
    }
    {
      Chain a = chain();
      Add("seed_opens_nothing", Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}), {{"wrong_seed"}}, 2, 2,
          0);
      SeedOpening seed = a.seed();
      seed.seed = 2;
      last().seeds = {seed};
    }
    Add("empty", "", {}, 0, 0, 0);
  }

  void Draws() {
    const auto changed = [&](const char* name, const Chain::Change& change, const char* problem) {
      Chain a("a", 1, Plain());
      const std::string records = Records() << a.Opening() << a.Draw(change) << a.Draw() << Sign({a.Head(false)});
      Add(name, records, {{problem, a.id(), 0}}, 2, 2, 1);
      last().seeds = {a.seed()};
    };
    changed(
        "other_kept_token",
        [](Receipt* receipt) {
          const kernels::TokenBits other = receipt->kept[receipt->kept[0].token == receipt->token ? 1 : 0];
          receipt->token = other.token;
        },
        "wrong_token");
    changed(
        "token_not_kept", [](Receipt* receipt) { receipt->token = kVocabulary - 1; }, "wrong_token");
    changed(
        "token_beyond_vocabulary", [](Receipt* receipt) { receipt->token = kVocabulary; }, "wrong_token");
    changed(
        "other_logprob", [](Receipt* receipt) { receipt->logprob_bits ^= 1; }, "wrong_logprob");
    changed(
        "other_position", [](Receipt* receipt) { receipt->position += 1; }, "wrong_token");
    changed(
        "stated_temperature", [](Receipt* receipt) { receipt->temperature = 1 << 24; }, "wrong_token");
    changed(
        "infinite_logit", [](Receipt* receipt) { receipt->kept[2].bits = 0x7f800000; }, "wrong_token");
    changed(
        "greedy_method", [](Receipt* receipt) { receipt->method = ReceiptMethod::kGreedy; }, "wrong_token");
    {
      Chain a("a", 1, Plain());
      const auto accepted = [](Receipt* receipt) { receipt->method = ReceiptMethod::kAcceptedDraft; };
      const auto unlisted = [](Receipt* receipt) { receipt->lists_kept = false, receipt->kept.clear(); };
      Add("not_drawn", Records() << a.Opening() << a.Draw(accepted) << a.Draw(unlisted) << Sign({a.Head(false)}), {}, 2,
          2, 0);
      last().seeds = {a.seed()};
    }
    {
      Chain a("adaptive", 1, Parameters([](auto* p) { p->mutable_adaptive_p()->set_target(0.3f); }));
      Add("adaptive_p", Records() << a.Opening() << a.Draws(3) << Sign({a.Head(false)}), {}, 3, 3, 0);
      last().seeds = {a.seed()};
    }
    {
      Chain a("watermark", 1, Parameters([](auto* p) { p->mutable_watermark()->set_key(5); }));
      Add("watermark", Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}), {}, 2, 2, 0);
      last().seeds = {a.seed()};
    }
  }

  std::vector<ReceiptVector> vectors_;
};

std::string HexOf(const std::string& bytes) { return absl::BytesToHexString(bytes); }

std::string JsonOf(const v1::SamplingParameters& parameters) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  SORTITION_CHECK(google::protobuf::util::MessageToJsonString(parameters, &json, options).ok());
  return json;
}

std::string TextOf(const ReceiptVector& vector) {
  std::vector<std::string> problems, keys, seeds;
  for (const ExpectedProblem& problem : vector.problems) {
    std::vector<std::string> fields = {law::Field("problem", law::Quoted(problem.name))};
    if (problem.name == "wrong_seed") {
      const SeedOpening& seed = vector.seeds[0];
      fields.push_back(law::Field("line", law::Quoted(std::to_string(seed.seed) + " " + cli::Hex(seed.salt))));
    }
    if (!problem.chain.empty()) fields.push_back(law::Field("chain", law::Quoted(problem.chain)));
    if (problem.index) fields.push_back(law::Field("index", std::to_string(*problem.index)));
    problems.push_back(law::Object(fields));
  }
  for (const auto& key : vector.keys) keys.push_back(law::Quoted(cli::Hex(key)));
  for (const SeedOpening& seed : vector.seeds) {
    seeds.push_back(law::Quoted(std::to_string(seed.seed) + " " + cli::Hex(seed.salt)));
  }
  return law::Object({law::Field("name", law::Quoted(vector.name)),
                      law::Field("records", law::Quoted(HexOf(vector.records))), law::Field("keys", law::List(keys)),
                      law::Field("seeds", law::List(seeds)), law::Field("problems", law::List(problems)),
                      law::Field("receipts", std::to_string(vector.receipts)),
                      law::Field("signed", std::to_string(vector.signed_receipts)),
                      law::Field("drawn", std::to_string(vector.drawn))});
}

}  // namespace

std::vector<ReceiptVector> MakeReceiptVectors() { return Maker().Make(); }

std::string ReceiptVectorsText() {
  std::vector<std::string> files, commitments, parameters;
  for (const ReceiptVector& vector : MakeReceiptVectors()) files.push_back(TextOf(vector));
  for (const uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
    service::ReceiptSalt salt;
    for (size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<uint8_t>(i * 17);
    commitments.push_back(
        law::Object({law::Field("seed", law::Wide(seed)), law::Field("salt", law::Quoted(cli::Hex(salt))),
                     law::Field("commitment", law::Quoted(cli::Hex(service::CommitmentOf(seed, salt))))}));
  }
  for (const NamedSet& set : Sets()) {
    const v1::SamplingParameters message = Parameters(set.set);
    parameters.push_back(law::Object(
        {law::Field("words", law::Numbers(service::ReceiptWords(message))), law::Field("json", JsonOf(message))}));
  }
  const auto list = [](const std::vector<std::string>& items) { return "[\n" + law::Joined(items, ",\n") + "\n]"; };
  return "{\"files\": " + list(files) + ",\n\"commitments\": " + list(commitments) +
         ",\n\"parameters\": " + list(parameters) + "}\n";
}

}  // namespace sortition::testing
