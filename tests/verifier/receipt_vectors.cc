// Makes chains of receipts from random rows by the law's reference, and damages them in each way that has a name.
#include "tests/verifier/receipt_vectors.h"

#include <bit>
#include <functional>

#include "absl/strings/escaping.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/law/golden/json_parts.h"
#include "tests/verifier/receipt_chain.h"

namespace sortition::testing {
namespace {

using vectors::Chain;
using vectors::Key;
using vectors::kVocabulary;
using vectors::Receipt;
using vectors::ReceiptMethod;
using vectors::ReceiptRecord;
using vectors::SeedOpening;
using vectors::Sign;

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
      {"phases",
       [](auto* p) {
         v1::Phase& phase = *p->add_phases();
         phase.add_begin(1), phase.add_end(2);
         phase.mutable_parameters()->set_temperature(0);
         phase.mutable_parameters()->set_repetition_penalty(1.1f);
       }},
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
    Integers();
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

  void Integers() {
    const auto changed = [&](const char* name, const std::function<void(service::ReceiptOpening*)>& change,
                             std::vector<ExpectedProblem> problems, uint64_t drawn) {
      Chain a("a", 1, Plain());
      a.ChangeOpening(change);
      for (ExpectedProblem& problem : problems) problem.chain = a.id();
      Add(name, Records() << a.Opening() << a.Draws(2) << Sign({a.Head(false)}), problems, 2, 2, drawn);
      last().seeds = {a.seed()};
    };
    // Servers stated none before they stated them: files of that time stay valid.
    changed(
        "no_integers", [](auto* opening) { opening->integers.clear(); }, {}, 2);
    changed(
        "other_multiplier", [](auto* opening) { ++opening->integers[0].stages[0][1]; }, {{"wrong_integers"}}, 0);
    changed(
        "other_repetition", [](auto* opening) { opening->integers[0].repetition = 1; }, {{"wrong_integers"}}, 0);
    changed(
        "phase_that_is_not", [](auto* opening) { opening->integers.resize(2); }, {{"wrong_integers"}}, 0);
    changed(
        "other_order", [](auto* opening) { std::swap(opening->integers[0].stages[0], opening->integers[0].stages[1]); },
        {{"wrong_integers"}}, 0);
    Chain a("a", 1, Plain());
    const std::string body = a.Opening().substr(service::kRecordHeaderBytes);
    for (const std::string& cut : {body.substr(0, body.size() - 4), body + std::string(4, '\0')}) {
      Add("integers_of_another_length", Chain::Record(ReceiptRecord::kOpening, cut),
          {{"bad_record", client::Hex(service::ChainIdOf(service::HashBytes(cut)))}}, 0, 0, 0);
    }
  }

  std::vector<ReceiptVector> vectors_;
};

// Returns a packed mask of the vocabulary, also of its padding: each token whose bit in `pattern`, repeated, is set.
std::vector<uint32_t> MaskOf(uint32_t pattern) { return {pattern, pattern * 3}; }

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
      fields.push_back(law::Field("line", law::Quoted(std::to_string(seed.seed) + " " + client::Hex(seed.salt))));
    }
    if (!problem.chain.empty()) fields.push_back(law::Field("chain", law::Quoted(problem.chain)));
    if (problem.index) fields.push_back(law::Field("index", std::to_string(*problem.index)));
    problems.push_back(law::Object(fields));
  }
  for (const auto& key : vector.keys) keys.push_back(law::Quoted(client::Hex(key)));
  for (const SeedOpening& seed : vector.seeds) {
    seeds.push_back(law::Quoted(std::to_string(seed.seed) + " " + client::Hex(seed.salt)));
  }
  return law::Object({law::Field("name", law::Quoted(vector.name)),
                      law::Field("records", law::Quoted(HexOf(vector.records))), law::Field("keys", law::List(keys)),
                      law::Field("seeds", law::List(seeds)), law::Field("problems", law::List(problems)),
                      law::Field("receipts", std::to_string(vector.receipts)),
                      law::Field("signed", std::to_string(vector.signed_receipts)),
                      law::Field("drawn", std::to_string(vector.drawn))});
}

std::string HexOf(const std::vector<uint32_t>& words) {
  return HexOf(std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)));
}

std::string TextOf(const MaskVector& vector) {
  std::vector<std::string> masks, rows;
  for (const std::vector<uint32_t>& mask : vector.masks) masks.push_back(law::Quoted(HexOf(mask)));
  for (const std::vector<float>& row : vector.rows) {
    std::vector<uint32_t> bits;
    for (const float x : row) bits.push_back(std::bit_cast<uint32_t>(x));
    rows.push_back(law::Numbers(bits));
  }
  return law::Object({law::Field("file", TextOf(vector.file)), law::Field("masks", law::List(masks)),
                      law::Field("rows", law::List(rows)), law::Field("compared", std::to_string(vector.compared))});
}

}  // namespace

std::vector<ReceiptVector> MakeReceiptVectors() { return Maker().Make(); }

std::vector<MaskVector> MakeMaskVectors() {
  const std::vector<uint32_t> even = MaskOf(0x55555555), third = MaskOf(0x24924924), other = MaskOf(0x0f0f0f0f);
  Chain chain("masked", 21, Plain());
  std::string records = Records() << chain.Opening() << chain.Draw(nullptr, even) << chain.Draw(nullptr, third)
                                  << chain.Draw() << chain.Draw(nullptr, even);
  records += Sign({chain.Head(true)});
  const auto vector = [&](const char* name, std::string bytes, std::vector<ExpectedProblem> problems,
                          uint64_t receipts) {
    return ReceiptVector{
        name,     std::move(bytes), {Key(1)->public_key()}, {chain.seed()}, std::move(problems), receipts,
        receipts, receipts};
  };
  std::vector<MaskVector> vectors;
  vectors.push_back({vector("masks_given", records, {}, 4), {other, third, even}, chain.rows(), 4});
  vectors.push_back({vector("mask_not_given", records, {}, 4), {other, third}, chain.rows(), 2});
  vectors.push_back({vector("no_masks_given", records, {}, 4), {}, chain.rows(), 1});
  {
    // The mask that the receipt names is not the one that was drawn with.
    Chain wrong("masked", 22, Plain());
    const auto names_other = [&](Receipt* receipt) { receipt->mask = service::MaskHashOf(other, kVocabulary); };
    const std::string file = Records() << wrong.Opening() << wrong.Draw(names_other, even) << Sign({wrong.Head(true)});
    MaskVector made{vector("another_mask", file, {{"wrong_row", wrong.id(), 0}}, 1), {other, even}, wrong.rows(), 0};
    made.file.seeds = {wrong.seed()};
    vectors.push_back(made);
  }
  {
    Chain bad("masked", 23, Plain());
    std::string body = bad.Draw(nullptr, even).substr(service::kRecordHeaderBytes);
    const std::string cut = Chain::Record(ReceiptRecord::kReceipt, body.substr(0, body.size() - 1));
    constexpr size_t kFlags = 80;  // their place in a receipt's body
    body[kFlags] |= 8;
    const std::string file = Records() << bad.Opening() << cut << Chain::Record(ReceiptRecord::kReceipt, body);
    MaskVector made{vector("bad_masks", file, {{"bad_record"}, {"bad_record"}}, 2), {even}, {}, 0};
    made.file.seeds = {bad.seed()};
    made.file.signed_receipts = made.file.drawn = 0;
    vectors.push_back(made);
  }
  return vectors;
}

std::string MaskVectorsText() {
  std::vector<std::string> files, masks;
  for (const MaskVector& vector : MakeMaskVectors()) files.push_back(TextOf(vector));
  for (const uint32_t live : {1u, 31u, 32u, 33u, 40u, 64u}) {
    const std::vector<uint32_t> words = MaskOf(0xdeadbeef);
    masks.push_back(law::Object({law::Field("mask", law::Quoted(HexOf(words))),
                                 law::Field("live_vocabulary_size", std::to_string(live)),
                                 law::Field("hash", law::Quoted(client::Hex(service::MaskHashOf(words, live))))}));
  }
  return "{\"files\": [\n" + law::Joined(files, ",\n") + "\n],\n\"masks\": [\n" + law::Joined(masks, ",\n") + "\n]}\n";
}

std::string ReceiptVectorsText() {
  std::vector<std::string> files, commitments, parameters;
  for (const ReceiptVector& vector : MakeReceiptVectors()) files.push_back(TextOf(vector));
  for (const uint64_t seed : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
    service::ReceiptSalt salt;
    for (size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<uint8_t>(i * 17);
    commitments.push_back(
        law::Object({law::Field("seed", law::Wide(seed)), law::Field("salt", law::Quoted(client::Hex(salt))),
                     law::Field("commitment", law::Quoted(client::Hex(service::CommitmentOf(seed, salt))))}));
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
