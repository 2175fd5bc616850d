// The manifest names each file by its hash, and the archive by that of machine.json.
#include "client/archive/archive.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/archive/settings.h"
#include "client/archive/tar.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/check.h"
#include "kernels/law/version.h"
#include "service/receipt/record.h"

namespace sortition::archive {
namespace {

constexpr uint64_t kMostBytes = uint64_t{64} << 20;
constexpr const char* kManifest = "proof.json";
// Each archive has these files, in this order.
constexpr const char* kNames[] = {"machine.json", "settings.json", "vectors.json", "texts.bin",
                                  "seeds.txt",    "receipts.bin",  "signature.bin"};

using google::protobuf::Struct;

std::string HashOf(std::string_view bytes) {
  const service::ReceiptHash hash = service::HashBytes(bytes);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), hash.size()});
}

std::string JsonText(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  SORTITION_CHECK(google::protobuf::util::MessageToJsonString(value, &json).ok());
  return json;
}

absl::Status Problem(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", what));
}

std::string ManifestOf(const Files& files) {
  const std::string format(kFormat);
  std::string json = absl::StrCat("{\n  \"format\": ", JsonText(format), ",\n  \"id\": \"",
                                  HashOf(files.at("machine.json")), "\",\n  \"files\": {");
  const char* separator = "\n";
  for (const char* const name : kNames) {
    const std::string& content = files.at(name);
    absl::StrAppend(&json, separator, "    \"", name, "\": {\"bytes\": ", content.size(), ", \"sha256\": \"",
                    HashOf(content), "\"}");
    separator = ",\n";
  }
  return json + "\n  }\n}\n";
}

std::string TextOf(const Struct& object, const std::string& member) {
  const auto found = object.fields().find(member);
  return found == object.fields().end() ? std::string() : found->second.string_value();
}

// Checks the files against the manifest.
absl::Status CheckManifest(const Files& files) {
  const auto manifest = files.find(kManifest);
  if (manifest == files.end()) return Problem("missing file", kManifest);
  Struct object;
  if (!google::protobuf::util::JsonStringToMessage(manifest->second, &object).ok()) {
    return Problem("damaged", "proof.json is no JSON");
  }
  if (TextOf(object, "format") != kFormat) {
    return Problem("unknown format",
                   absl::StrCat("\"", TextOf(object, "format"), "\" is not \"", std::string(kFormat), "\""));
  }
  for (const char* const name : kNames) {
    if (!files.contains(name)) return Problem("missing file", name);
  }
  for (const auto& [name, content] : files) {
    if (name != kManifest && std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      return Problem("unknown file", name);
    }
  }
  const std::string id = HashOf(files.at("machine.json"));
  if (TextOf(object, "id") != id) return Problem("mixed", "machine.json is not that of the archive's id");
  const auto listed = object.fields().find("files");
  for (const char* const name : kNames) {
    if (listed == object.fields().end()) return Problem("damaged", "proof.json lists no files");
    const auto& entries = listed->second.struct_value().fields();
    const auto entry = entries.find(name);
    if (entry == entries.end()) return Problem("damaged", absl::StrCat("proof.json does not list ", name));
    const auto& entry_fields = entry->second.struct_value().fields();
    const auto bytes = entry_fields.find("bytes");
    const std::string& content = files.at(name);
    const double expected = bytes == entry_fields.end() ? -1 : bytes->second.number_value();
    if (static_cast<double>(content.size()) < expected) {
      return Problem("cut", absl::StrCat(name, " has ", content.size(), " bytes, not ", expected));
    }
    if (static_cast<double>(content.size()) != expected ||
        TextOf(entry->second.struct_value(), "sha256") != HashOf(content)) {
      return Problem("damaged", absl::StrCat(name, " has changed, or is another archive's"));
    }
  }
  return absl::OkStatus();
}

// Checks that the archive is of this law, model and settings.
absl::Status CheckSettings(const Files& files) {
  Struct machine;
  if (!google::protobuf::util::JsonStringToMessage(files.at("machine.json"), &machine).ok()) {
    return Problem("damaged", "machine.json is no JSON");
  }
  if (TextOf(machine, "law_version") != absl::StrCat(law::kLawVersion)) {
    return Problem("other law", absl::StrCat("machine.json is of version ", TextOf(machine, "law_version")));
  }
  uint32_t each;
  const std::string texts = TextOf(machine, "texts");
  if (!texts.empty() && (!absl::SimpleAtoi(texts, &each) || each == 0 || absl::StrCat(each) != texts)) {
    return Problem("damaged", "texts of machine.json is no number of texts");
  }
  const std::string& json = files.at("settings.json");
  if (json == Settings::Own().json()) return absl::OkStatus();
  const auto parsed = Settings::Parse(json);
  if (!parsed.ok()) return parsed.status();
  return Problem("other settings", "settings.json is not this release's");
}

// Checks that the signature is by the key of machine.json.
absl::Status CheckKey(const Files& files) {
  Struct machine;
  SORTITION_CHECK(google::protobuf::util::JsonStringToMessage(files.at("machine.json"), &machine).ok());
  std::string_view record = files.at("signature.bin");
  const std::string key = absl::HexStringToBytes(TextOf(machine, "public_key"));
  if (record.empty() && key.empty()) return absl::OkStatus();
  record.remove_prefix(std::min(record.size(), service::kRecordHeaderBytes));
  const auto signature = service::DecodeSignature(record);
  if (!signature) return Problem("damaged", "signature.bin is no signature");
  const std::string signer(signature->public_key.begin(), signature->public_key.end());
  if (signer != key) return Problem("mixed", "signature.bin is by another key than that of machine.json");
  return absl::OkStatus();
}

}  // namespace

std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string json = "{";
  const char* separator = "\n";
  for (const auto& [name, value] : members) {
    absl::StrAppend(&json, separator, "  ", JsonText(name), ": ", JsonText(value));
    separator = ",\n";
  }
  return json + "\n}\n";
}

std::string MakeArchive(Files files) {
  TarFiles in_order = {{kManifest, ManifestOf(files)}};
  for (const char* const name : kNames) in_order.emplace_back(name, std::move(files.at(name)));
  return PackFiles(in_order);
}

absl::StatusOr<Files> OpenArchive(std::string_view archive) {
  auto unpacked = UnpackFiles(archive, kMostBytes);
  if (!unpacked.ok()) return unpacked.status();
  Files files;
  for (auto& [name, content] : *unpacked) files.emplace(std::move(name), std::move(content));
  for (const auto check : {&CheckManifest, &CheckSettings, &CheckKey}) {
    if (absl::Status status = check(files); !status.ok()) return status;
  }
  return files;
}

uint32_t TextsOfEach(const Files& files) {
  Struct machine;
  uint32_t each;
  const bool is_json = google::protobuf::util::JsonStringToMessage(files.at("machine.json"), &machine).ok();
  return is_json && absl::SimpleAtoi(TextOf(machine, "texts"), &each) ? each : kAllTexts;
}

absl::StatusOr<Files> ReadArchive(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::string archive(kMostBytes + 1, '\0');
  file.read(archive.data(), static_cast<std::streamsize>(archive.size()));
  archive.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  auto files = archive.size() > kMostBytes ? Problem("too large", absl::StrCat("more than ", kMostBytes, " bytes"))
                                           : OpenArchive(archive);
  if (files.ok()) return files;
  return absl::Status(files.status().code(), absl::StrCat(path, ": ", files.status().message()));
}

}  // namespace sortition::archive
