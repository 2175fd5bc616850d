// Reading of published rows, and their way to a backend.
#include "tests/verifier/published_row.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/law/golden/golden_outputs.h"

namespace sortition::testing {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using kernels::DType;
using Form = kernels::DraftDistribution::Form;

[[noreturn]] void Wrong(std::string_view field) {
  std::fprintf(stderr, "a published row has no such %.*s\n", int(field.size()), field.data());
  std::abort();
}

const Value* Find(const Struct& object, const std::string& field) {
  const auto found = object.fields().find(field);
  return found == object.fields().end() ? nullptr : &found->second;
}

const Value& At(const Struct& object, const std::string& field) {
  const Value* found = Find(object, field);
  if (found == nullptr) Wrong(field);
  return *found;
}

uint32_t Number(const Value& value) { return uint32_t(int64_t(value.number_value())); }

uint64_t Wide(const Value& value) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(value.string_value(), &number)) Wrong("64-bit number");
  return number;
}

std::vector<uint32_t> Numbers(const Value& value) {
  std::vector<uint32_t> numbers;
  for (const Value& item : value.list_value().values()) numbers.push_back(Number(item));
  return numbers;
}

std::vector<uint32_t> Numbers(const Struct& object, const std::string& field) {
  const Value* found = Find(object, field);
  return found == nullptr ? std::vector<uint32_t>() : Numbers(*found);
}

DType TypeOf(const Value& name) {
  if (name.string_value() == "f32") return DType::kF32;
  if (name.string_value() == "f16") return DType::kF16;
  if (name.string_value() != "bf16") Wrong("dtype");
  return DType::kBF16;
}

float FloatAt(const Struct& object, const std::string& field) {
  return std::bit_cast<float>(Number(At(object, field)));
}

void ReadCompiled(const Struct& compiled, law::GoldenRow* row) {
  kernels::RowParameters& parameters = row->compiled;
  parameters.greedy = At(compiled, "greedy").bool_value();
  parameters.multiplier = Number(At(compiled, "multiplier"));
  parameters.exponent = int32_t(Number(At(compiled, "exponent")));
  parameters.window = Number(At(compiled, "window"));
  const bool chained = Find(compiled, "chain") != nullptr;
  parameters.temperature = parameters.greedy || chained ? 1 : row->options.temperature;
  parameters.min_p_distance = Number(At(compiled, "min_p_distance"));
  parameters.top_k = Number(At(compiled, "top_k"));
  parameters.top_p = Number(At(compiled, "top_p"));
  parameters.repetition = Number(At(compiled, "repetition"));
  parameters.inverse_repetition = Number(At(compiled, "inverse_repetition"));
  parameters.mask_nan = At(compiled, "mask_nan").bool_value();
  parameters.raw_top = Number(At(compiled, "raw_top"));
  parameters.processed_top = Number(At(compiled, "processed_top"));
  for (const Value& ask : At(compiled, "asks").list_value().values()) {
    parameters.raw_logprob |= ask.string_value() == "raw";
    parameters.processed_logprob |= ask.string_value() == "processed";
    parameters.entropy |= ask.string_value() == "entropy";
    parameters.kept_count |= ask.string_value() == "kept_count";
    parameters.kept_tokens |= ask.string_value() == "kept_tokens";
    parameters.tempered_logprob |= ask.string_value() == "tempered";
    parameters.kept_log_mass |= ask.string_value() == "kept_log_mass";
    row->wants_race_place |= ask.string_value() == "race_place";
  }
  if (parameters.tempered_logprob) parameters.tempered_top = Number(At(compiled, "tempered_top"));
  if (!chained) return;
  for (const Value& stage : At(compiled, "chain").list_value().values()) {
    const std::vector<uint32_t> words = Numbers(stage);
    if (words.size() != 5) Wrong("stage");
    parameters.chain.push_back({static_cast<kernels::StageKind>(words[0]), {words[1], words[2], words[3], words[4]}});
  }
}

void ReadDraft(const Struct& draft, law::GoldenRow* row) {
  const std::string& form = At(draft, "form").string_value();
  if (form == "certain") return;
  law::KnownDraft& read = row->draft;
  read.form = form == "dense" ? Form::kDense : Form::kSparse;
  read.tokens = Numbers(draft, "tokens");
  read.elements = Numbers(draft, "elements");
  if (read.form != Form::kDense) return;
  read.dtype = TypeOf(At(draft, "dtype"));
  read.rest = Number(At(draft, "rest"));
  const size_t bytes = kernels::ElementBytes(read.dtype);
  read.dense.resize(row->vocabulary * bytes);
  for (size_t id = 0; id < row->vocabulary; ++id) std::memcpy(&read.dense[id * bytes], &read.rest, bytes);
  for (size_t i = 0; i < read.tokens.size(); ++i) {
    std::memcpy(&read.dense[read.tokens[i] * bytes], &read.elements[i], bytes);
  }
}

law::GoldenRow RowOf(const Struct& object) {
  law::GoldenRow row;
  row.name = At(object, "name").string_value();
  row.dtype = TypeOf(At(object, "dtype"));
  row.vocabulary = Number(At(object, "vocabulary"));
  row.elements = Numbers(At(object, "logits").struct_value(), "elements");
  if (row.elements.size() != row.vocabulary) Wrong("elements");
  const Struct& options = At(object, "options").struct_value();
  row.options.temperature = FloatAt(options, "temperature_bits");
  row.options.top_k = Number(At(options, "top_k"));
  row.options.top_p = FloatAt(options, "top_p_bits");
  row.options.min_p = FloatAt(options, "min_p_bits");
  row.options.repetition_penalty = FloatAt(options, "repetition_penalty_bits");
  ReadCompiled(At(object, "compiled").struct_value(), &row);
  const Struct& noise = At(object, "noise").struct_value();
  row.noise = {Wide(At(noise, "seed")), Number(At(noise, "position")), Number(At(noise, "stream"))};
  if (const Value* edits = Find(object, "patches")) {
    for (const Value& edit : edits->list_value().values()) {
      const std::vector<uint32_t> words = Numbers(edit);
      if (words.size() != 4) Wrong("edit");
      row.edits.push_back({words[0], words[1], words[2], words[3]});
    }
  }
  row.has_allowed_tokens = Find(object, "allowed_tokens") != nullptr;
  row.allowed_tokens = Numbers(object, "allowed_tokens");
  row.allowed_bits = Numbers(object, "allowed_bits");
  if (const Value* state = Find(object, "sampler_state")) row.sampler_state = Wide(*state);
  if (const Value* given = Find(object, "score")) {
    row.task = kernels::RowTask::kScore;
    row.given = Number(*given);
  }
  if (const Value* given = Find(object, "verify")) {
    row.task = kernels::RowTask::kVerify;
    row.given = Number(*given);
    ReadDraft(At(object, "draft").struct_value(), &row);
  }
  row.requested = Numbers(object, "requested");
  return row;
}

}  // namespace

std::vector<law::GoldenRow> PublishedRows(const std::string& file) {
  Struct object;
  if (!google::protobuf::util::JsonStringToMessage(file, &object).ok()) Wrong("JSON");
  std::vector<law::GoldenRow> rows;
  for (const Value& item : At(object, "rows").list_value().values()) {
    const Value* inner = Find(item.struct_value(), "row");
    rows.push_back(RowOf(inner == nullptr ? item.struct_value() : inner->struct_value()));
  }
  return rows;
}

std::string WithoutSpaces(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

bool IsPublishedAnswer(const std::string& file, const law::GoldenRow& row) {
  return file.find(WithoutSpaces(law::GoldenRowJson(row))) != std::string::npos;
}

void ComparePublishedRows(Backend* backend) {
  Comparison comparison(backend);
  CompareGoldenRows(&comparison);
  for (const char* const name : {"law_1_rows.json", "law_1_filters.json", "law_1_histories.json"}) {
    SCOPED_TRACE(name);
    std::ostringstream file;
    file << std::ifstream(std::string(SORTITION_SOURCE_DIR "/kernels/law/vectors/") + name).rdbuf();
    const std::string published = WithoutSpaces(file.str());
    const uint64_t before = comparison.compared();
    const std::vector<law::GoldenRow> rows = PublishedRows(file.str());
    ASSERT_GE(rows.size(), 100u);
    size_t left_out = 0;
    for (const law::GoldenRow& row : rows) {
      // The comparison is with the reference, so that must answer as published.
      ASSERT_TRUE(IsPublishedAnswer(published, row)) << row.name;
      const auto tensor = std::make_shared<const std::vector<std::byte>>(law::MakeTensor(row));
      const kernels::RowRequest request = law::MakeRequest(row, *tensor);
      if ((kernels::FeaturesOf(request) & ~backend->features()) != 0) {
        ++left_out;
        continue;
      }
      comparison.Add({request, *tensor, row.name, tensor});
    }
    EXPECT_LT(left_out, rows.size());
    comparison.Flush();  // before the rows end, which the requests refer to
    EXPECT_EQ(comparison.compared() - before, rows.size() - left_out);
  }
}

}  // namespace sortition::testing
