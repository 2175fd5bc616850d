// Archives of proofs: the same texts on every side, a changed bit that is named, and archives that are not right.
#include "client/archive/archive.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/archive/drawer.h"
#include "client/archive/receipt_columns.h"
#include "client/archive/settings.h"
#include "client/archive/tar.h"
#include "client/archive/texts_file.h"
#include "devices/cpu/cpu_device.h"
#include "sortition/in_process.h"

namespace sortition::archive::archive_test {
namespace {

constexpr uint64_t kMost = uint64_t{64} << 20;

void Go(uint32_t) {}

Files Draw(const std::string& target) {
  devices::CpuDevice device({.target = target});
  auto drawn = DrawTexts(Settings::Own(), OnDevice(&device).get(), &Go);
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  return {{"machine.json", JsonObject({{"law_version", "1"},
                                       {"device", target},
                                       {"public_key", absl::BytesToHexString(drawn->receipts.public_key)}})},
          {"settings.json", Settings::Own().json()},
          {"vectors.json", "{}"},
          {"seeds.txt", ""},
          {"texts.bin", std::move(drawn->texts)},
          {"receipts.bin", *PackReceipts(drawn->receipts.records)},
          {"signature.bin", std::move(drawn->receipts.signature)}};
}

// Made once: it takes seconds.
const Files& Best() {
  static const Files* const files = new Files(Draw("auto"));
  return *files;
}

// The same with short receipts: they take most of the time to pack.
Files Small() {
  Files files = Best();
  files["receipts.bin"] = "receipts";
  return files;
}

std::string Message(const absl::StatusOr<Files>& opened) {
  return opened.ok() ? "right" : std::string(opened.status().message());
}

// Opens the archive of the files after a change that the manifest knows.
std::string AfterChange(const std::function<void(Files*)>& change) {
  Files files = Small();
  change(&files);
  return Message(OpenArchive(MakeArchive(files)));
}

// Opens the archive after a change that the manifest does not know.
std::string AfterTampering(const std::function<void(TarFiles*)>& change) {
  TarFiles files = *UnpackFiles(MakeArchive(Small()), kMost);
  change(&files);
  return Message(OpenArchive(PackFiles(files)));
}

std::string* Find(TarFiles* files, const std::string& name) {
  for (auto& [found, content] : *files) {
    if (found == name) return &content;
  }
  return nullptr;
}

TEST(ArchiveModel, ARowHasTheBitsOfThePage) {
  // By the formulas of docs/proof.md in another language.
  std::vector<float> row(Model::kVocabulary);
  Settings::Own().model().WriteRow(0, 0, 0, row);
  EXPECT_EQ(row[0], -5.6875f);
  EXPECT_EQ(row[1], -7.0078125f);
  EXPECT_EQ(row[2], -4.9765625f);
  EXPECT_EQ(row[3], -7.7421875f);
  EXPECT_EQ(*std::max_element(row.begin(), row.end()), 3.1796875f);
}

TEST(ArchiveSettings, WhatThisReleaseDoesNotKnowIsNamed) {
  const std::string& own = Settings::Own().json();
  const auto parse = [&](const std::string& from, const std::string& to) {
    const std::string json = absl::StrReplaceAll(own, {{from, to}});
    EXPECT_NE(json, own);
    return std::string(Settings::Parse(json).status().message());
  };
  EXPECT_TRUE(absl::StartsWith(parse("\"law_version\": 1", "\"law_version\": 2"), "other law:"));
  EXPECT_TRUE(absl::StartsWith(parse("20261128", "20261129"), "other model:"));
  EXPECT_TRUE(absl::StartsWith(parse("sortition proof 1", "sortition proof 2"), "unknown format:"));
  EXPECT_TRUE(absl::StrContains(parse("\"top_k\": 40", "\"top_x\": 40"), "parameters"));
  EXPECT_TRUE(absl::StrContains(parse("\"hidden\": 3", "\"hidden\": 8"), "mask.hidden"));
  EXPECT_TRUE(absl::StrContains(parse("[-1, 0, 1]", "[-1, 1, 1]"), "drafts.parents"));
  EXPECT_TRUE(absl::StrContains(parse("\"period\": 8", "\"period\": 8, \"more\": 1"), "unknown members"));
}

TEST(ArchiveTexts, AreEqualOnEveryTarget) {
  for (const std::string target : {"scalar", "sse4", "avx2", "avx512", "neon"}) {
    if (!devices::IsCpuTarget(target)) continue;
    const Files files = Draw(target);
    const auto compared = CompareTexts(Best(), files);
    ASSERT_TRUE(compared.ok()) << compared.status();
    EXPECT_EQ(compared->lines, std::vector<std::string>()) << target;
    EXPECT_EQ(compared->texts, 256u);
    EXPECT_EQ(files.at("receipts.bin"), Best().at("receipts.bin")) << target;
  }
}

TEST(ArchiveTexts, AreThoseOfAClientInProcess) {
  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok()) << client.status();
  // It has its own code around the same rows, and makes no receipts.
  const auto drawn = DrawTexts(Settings::Own(), ByClient(client->get(), false).get(), &Go);
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  EXPECT_EQ(drawn->texts, Best().at("texts.bin"));
}

TEST(ArchiveTexts, MeetWhatTheirSettingsAreFor) {
  const auto texts = DecodeTexts(Settings::Own(), Best().at("texts.bin"));
  ASSERT_TRUE(texts.ok()) << texts.status();
  // Drafts of trees are coupled: without them the texts would be the same. Texts of one setting differ.
  for (uint32_t text = 1; text < Settings::Own().texts(); ++text) {
    EXPECT_NE((*texts)[text].rows, (*texts)[text - 1].rows);
    EXPECT_EQ((*texts)[text].tokens.size(), 256u);
  }
}

TEST(Archive, IsReadAsItWasWritten) {
  const std::string archive = MakeArchive(Best());
  EXPECT_LT(archive.size(), 5'000'000u);
  auto opened = OpenArchive(archive);
  ASSERT_TRUE(opened.ok()) << opened.status();
  opened->erase("proof.json");
  EXPECT_EQ(*opened, Best());
}

TEST(ArchiveReceipts, ThatEndEarlyAreNamed) {
  std::string records;
  AppendRecord(service::ReceiptRecord::kSignature, "no signature", &records);
  const size_t size = records.size();
  AppendRecord(service::ReceiptRecord::kOpening, "no opening", &records);
  for (const size_t end : {size + 1, size + 5, records.size() - 1}) {
    EXPECT_EQ(PackReceipts(records.substr(0, end)).status().message(),
              absl::StrCat("receipts end within the record at byte ", size));
  }
  EXPECT_TRUE(PackReceipts(records).ok());
}

TEST(Archive, AChangedBitIsNamed) {
  const auto texts = DecodeTexts(Settings::Own(), Best().at("texts.bin"));
  ASSERT_TRUE(texts.ok());
  std::vector<TextAnswers> changed = *texts;
  changed[17].tokens[5].logprob ^= 1u << 3;
  Files files = Best();
  files["texts.bin"] = EncodeTexts(Settings::Own(), changed);
  const auto compared = CompareTexts(Best(), files);
  ASSERT_TRUE(compared.ok());
  ASSERT_EQ(compared->lines.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(
      compared->lines.front(),
      "text 17 (usual): 1 of 256 rows differ, first that of token 5 (position 21): bit 3 of the logprob: 0x"))
      << compared->lines.front();
}

TEST(Archive, OneOfSomeTextsIsComparedInThese) {
  const Settings some = Settings::Own().First(2);
  EXPECT_EQ(some.drawn().size(), 2 * some.list().size());
  devices::CpuDevice device({.target = "scalar"});
  const auto drawn = DrawTexts(some, OnDevice(&device).get(), &Go);
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  Files files = Small();
  files["machine.json"] = JsonObject({{"law_version", "1"}, {"texts", "2"}, {"public_key", ""}});
  files["signature.bin"] = "";
  files["texts.bin"] = drawn->texts;
  const auto opened = OpenArchive(MakeArchive(files));
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const auto& [one, other] : {std::pair(*opened, Best()), std::pair(Best(), *opened)}) {
    const auto compared = CompareTexts(one, other);
    ASSERT_TRUE(compared.ok()) << compared.status();
    EXPECT_EQ(compared->lines, std::vector<std::string>());
    EXPECT_EQ(compared->texts, 26u);
  }
  files["texts.bin"].back() ^= 1;
  const auto compared = CompareTexts(files, Best());
  ASSERT_TRUE(compared.ok()) << compared.status();
  ASSERT_EQ(compared->lines.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(compared->lines.front(), "text 241 (logprobs of bf16 rows)")) << compared->lines.front();
  for (const std::string texts : {"0", "-1", "02", "x"}) {
    files["machine.json"] = JsonObject({{"law_version", "1"}, {"texts", texts}, {"public_key", ""}});
    EXPECT_EQ(Message(OpenArchive(MakeArchive(files))), "damaged: texts of machine.json is no number of texts");
  }
}

TEST(Archive, ACutOneIsNamed) {
  const std::string archive = MakeArchive(Small());
  for (const size_t bytes : {size_t{0}, size_t{1}, archive.size() / 2, archive.size() - 1}) {
    EXPECT_TRUE(absl::StartsWith(Message(OpenArchive(archive.substr(0, bytes))), "cut:")) << bytes;
  }
  EXPECT_EQ(AfterTampering([](TarFiles* files) { Find(files, "texts.bin")->pop_back(); }),
            absl::StrCat("cut: texts.bin has ", Best().at("texts.bin").size() - 1, " bytes, not ",
                         Best().at("texts.bin").size()));
}

TEST(Archive, ADamagedOneIsNamed) {
  EXPECT_TRUE(absl::StartsWith(Message(OpenArchive("no archive")), "damaged:"));
  EXPECT_EQ(AfterTampering([](TarFiles* files) { Find(files, "receipts.bin")->at(3) ^= 1; }),
            "damaged: receipts.bin has changed, or is another archive's");
  EXPECT_EQ(AfterTampering([](TarFiles* files) { Find(files, "proof.json")->erase(0, 1); }),
            "damaged: proof.json is no JSON");
  EXPECT_TRUE(absl::StartsWith(AfterTampering([](TarFiles* files) { files->push_back(files->back()); }), "damaged:"));
}

TEST(Archive, AMixtureOfTwoIsNamed) {
  const std::string other = JsonObject({{"law_version", "1"}, {"public_key", ""}});
  EXPECT_EQ(AfterTampering([&](TarFiles* files) { *Find(files, "machine.json") = other; }),
            "mixed: machine.json is not that of the archive's id");
  EXPECT_EQ(AfterChange([&](Files* files) { files->at("machine.json") = other; }),
            "mixed: signature.bin is by another key than that of machine.json");
}

TEST(Archive, OneOfAnotherLawOrModelIsNamed) {
  const auto with = [](const std::string& from, const std::string& to) {
    return AfterChange([&](Files* files) {
      files->at("settings.json") = absl::StrReplaceAll(files->at("settings.json"), {{from, to}});
    });
  };
  EXPECT_TRUE(absl::StartsWith(with("\"law_version\": 1", "\"law_version\": 2"), "other law:"));
  EXPECT_TRUE(absl::StartsWith(with("20261128", "20261129"), "other model:"));
  EXPECT_TRUE(absl::StartsWith(with("\"top_k\": 40", "\"top_k\": 41"), "other settings:"));
  EXPECT_TRUE(absl::StartsWith(
      AfterChange([](Files* files) {
        absl::StrReplaceAll({{"\"law_version\": \"1\"", "\"law_version\": \"2\""}}, &files->at("machine.json"));
      }),
      "other law:"));
}

TEST(Archive, MissingAndUnknownFilesAreNamed) {
  EXPECT_EQ(AfterTampering([](TarFiles* files) { files->pop_back(); }), "missing file: signature.bin");
  EXPECT_EQ(AfterTampering([](TarFiles* files) { files->erase(files->begin()); }), "missing file: proof.json");
  EXPECT_EQ(AfterTampering([](TarFiles* files) { files->emplace_back("run.sh", ""); }), "unknown file: run.sh");
  EXPECT_TRUE(
      absl::StartsWith(AfterTampering([](TarFiles* files) {
                         absl::StrReplaceAll({{"sortition proof 1", "sortition proof 9"}}, Find(files, "proof.json"));
                       }),
                       "unknown format:"));
}

TEST(Archive, GigabytesAreNotUnpacked) {
  // 65 MiB of zeros are 65 KB packed.
  EXPECT_TRUE(absl::StartsWith(
      AfterTampering([](TarFiles* files) { files->emplace_back("more.bin", std::string(65u << 20, '\0')); }),
      "too large:"));
}

}  // namespace
}  // namespace sortition::archive::archive_test
