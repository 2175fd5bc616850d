// Frames, windows and settings of HTTP/2, as far as a client that sends needs them.
#include "tests/server/http2_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/check.h"
#include "tests/server/raw_http2.h"
#include "tests/server/server_process.h"

namespace sortition::server {
namespace {

constexpr uint8_t kAck = 1;
constexpr uint32_t kInitialWindowSetting = 4;
// gRPC's own setting: the client takes binary headers that are not base64.
constexpr std::string_view kTakesBinary("\xfe\x03\0\0\0\1", 6);

uint32_t Number(std::string_view bytes) {
  uint32_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

}  // namespace

Http2Client::Http2Client(const std::string& address) : fd_(ConnectSocket(address)) {
  Send(Http2Start());
  Send(Http2Frame(FrameType::kSettings, 0, 0, kTakesBinary));
  Receive(5'000);
}

Http2Client::~Http2Client() {
  if (fd_ >= 0) close(fd_);
}

void Http2Client::Send(std::string_view bytes) {
  while (fd_ >= 0 && !bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      close(fd_);
      fd_ = -1;
      windows_.clear();
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void Http2Client::Call(uint32_t stream, std::string_view path, std::string_view more) {
  Send(Http2Frame(FrameType::kHeaders, kEndHeaders, stream, CallHeaders(path).append(more)));
  windows_[stream] = initial_window_;
}

void Http2Client::OpenWindows() {
  constexpr std::string_view kMostInitialWindow("\0\4\x7f\xff\xff\xff", 6);
  constexpr std::string_view kMostIncrement("\x7f\xff\0\0", 4);
  Send(Http2Frame(FrameType::kSettings, 0, 0, kMostInitialWindow));
  Send(Http2Frame(FrameType::kWindowUpdate, 0, 0, kMostIncrement));
}

void Http2Client::SendMessage(uint32_t stream, std::string_view message) {
  std::string bytes(1, '\0');
  for (const uint32_t shift : {24u, 16u, 8u, 0u}) bytes.push_back(static_cast<char>(message.size() >> shift & 0xff));
  bytes += message;
  for (std::string_view left = bytes; !left.empty();) {
    const size_t sent = SendData(stream, left);
    SORTITION_CHECK(sent > 0);
    left.remove_prefix(sent);
  }
}

void Http2Client::HalfClose(uint32_t stream) { Send(Http2Frame(FrameType::kData, kEndStream, stream, "")); }

size_t Http2Client::SendData(uint32_t stream, std::string_view bytes) {
  const auto found = windows_.find(stream);
  if (found == windows_.end()) return 0;
  int64_t& window = found->second;
  const int64_t admitted = std::min({int64_t{16384}, static_cast<int64_t>(bytes.size()), window_, window});
  if (admitted <= 0) return 0;
  window -= admitted;
  window_ -= admitted;
  Send(Http2Frame(FrameType::kData, 0, stream, bytes.substr(0, static_cast<size_t>(admitted))));
  return static_cast<size_t>(admitted);
}

bool Http2Client::Receive(int milliseconds) {
  pollfd readable = {fd_, POLLIN, 0};
  if (fd_ < 0 || poll(&readable, 1, milliseconds) <= 0) return false;
  char bytes[65536];
  const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
  if (count <= 0) {
    windows_.clear();
    return false;
  }
  received_.append(bytes, static_cast<size_t>(count));
  std::string_view rest = received_;
  while (rest.size() >= 9) {
    const size_t size = Number(rest.substr(0, 3));
    if (rest.size() < 9 + size) break;
    Take(static_cast<uint8_t>(rest[3]), static_cast<uint8_t>(rest[4]), Number(rest.substr(5, 4)), rest.substr(9, size));
    rest.remove_prefix(9 + size);
  }
  received_.erase(0, received_.size() - rest.size());
  return true;
}

void Http2Client::Take(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const auto is = [type](FrameType wanted) { return type == static_cast<uint8_t>(wanted); };
  if (is(FrameType::kHeaders)) headers_.append(payload);
  if (is(FrameType::kReset) || ((is(FrameType::kHeaders) || is(FrameType::kData)) && (flags & kEndStream) != 0)) {
    windows_.erase(stream);
  } else if (is(FrameType::kWindowUpdate)) {
    if (stream == 0) window_ += Number(payload);
    if (const auto found = windows_.find(stream); found != windows_.end()) found->second += Number(payload);
  } else if (is(FrameType::kPing) && (flags & kAck) == 0) {
    Send(Http2Frame(FrameType::kPing, kAck, 0, payload));
  } else if (is(FrameType::kSettings) && (flags & kAck) == 0) {
    for (; payload.size() >= 6; payload.remove_prefix(6)) {
      if (Number(payload.substr(0, 2)) != kInitialWindowSetting) continue;
      const int64_t initial = Number(payload.substr(2, 4));
      for (auto& [id, window] : windows_) window += initial - initial_window_;
      initial_window_ = initial;
    }
    Send(Http2Frame(FrameType::kSettings, kAck, 0, ""));
  }
}

}  // namespace sortition::server
