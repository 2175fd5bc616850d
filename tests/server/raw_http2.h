// HTTP/2 by hand: a client that breaks the rules of clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sortition::server {

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9
};
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;

inline std::string Http2Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  for (const uint32_t shift : {16u, 8u, 0u}) frame.push_back(static_cast<char>(payload.size() >> shift & 0xff));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const uint32_t shift : {24u, 16u, 8u, 0u}) frame.push_back(static_cast<char>(stream >> shift & 0xff));
  return frame.append(payload);
}

// A header as HPACK writes one that is not to be indexed, in plain letters; up to 126 bytes each.
inline std::string Http2Header(std::string_view name, std::string_view value) {
  std::string header(1, '\0');
  header.push_back(static_cast<char>(name.size()));
  header.append(name);
  header.push_back(static_cast<char>(value.size()));
  return header.append(value);
}

// The headers of a gRPC call.
inline std::string CallHeaders(std::string_view path) {
  return Http2Header(":method", "POST") + Http2Header(":scheme", "http") + Http2Header(":path", path) +
         Http2Header(":authority", "localhost") + Http2Header("content-type", "application/grpc") +
         Http2Header("te", "trailers");
}

// Returns the first bytes of a connection.
inline std::string Http2Start() { return std::string(kHttp2Preface) + Http2Frame(FrameType::kSettings, 0, 0, ""); }

}  // namespace sortition::server
