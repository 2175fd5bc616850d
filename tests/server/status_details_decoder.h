// Reads google.rpc.Status with descriptors built at run time: an independent reader of the status that the server
// encodes by hand.
#pragma once

#include <map>
#include <string>

namespace sortition::server {

struct DecodedDetails {
  bool valid = false;
  int code = 0;
  std::string message;
  std::string reason;
  std::string domain;
  std::map<std::string, std::string> metadata;
  double retry_seconds = 0;
};

DecodedDetails DecodeStatusDetails(const std::string& bytes);

}  // namespace sortition::server
