// Prints the edits of the next row that follow from the history and options of a sequence. For each line of standard
// input, an OpenSequence as JSON, it prints one line: a JSON list of [token, banned, repeated, penalty], and the forced
// token or null.
#include <bit>
#include <cstdio>
#include <iostream>
#include <string>

#include "google/protobuf/util/json_util.h"
#include "service/entropy.h"
#include "service/text/text.h"
#include "service/wire/open_request.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

bool Print(const std::string& line) {
  v1::OpenSequence open;
  if (!google::protobuf::util::JsonStringToMessage(line, &open).ok()) return false;
  SystemEntropy entropy;
  const auto parsed = ParseOpen(open, Limits(), "open", &entropy);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    std::fprintf(stderr, "%s: %s\n", refusal->field.c_str(), refusal->message.c_str());
    return false;
  }
  const OpenRequest& request = std::get<OpenRequest>(parsed);
  const auto state =
      Text::Build(request.spec, request.history->tokens, request.history->prompt_length, /*kept_history=*/64);
  const char* separator = "";
  std::printf("[[");
  for (const LogitEdit& edit : *state->LendEdits()) {
    std::printf("%s[%u, %d, %d, %.9g]", separator, edit.token, (edit.flags & LogitEdit::kBanned) != 0,
                (edit.flags & LogitEdit::kRepeated) != 0, double{std::bit_cast<float>(edit.penalty)});
    separator = ", ";
  }
  const std::optional<uint32_t> forced = state->forced_token();
  std::printf("], %s]\n", forced ? std::to_string(*forced).c_str() : "null");
  return true;
}

}  // namespace
}  // namespace sortition::service

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    if (!sortition::service::Print(line)) return 1;
  }
  return 0;
}
