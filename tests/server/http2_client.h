// A connection that speaks HTTP/2 by hand and keeps to flow control, so that a server accepts its bytes like those of a
// real client.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace sortition::server {

// Blocking, with bounds. Not thread-safe.
class Http2Client {
 public:
  // Connects to `address`, HOST:PORT, and exchanges settings.
  explicit Http2Client(const std::string& address);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  bool connected() const { return fd_ >= 0; }
  // Lets the server send what the sockets take, without flow control.
  void OpenWindows();
  // Begins a call to `path` on stream `stream`, odd and rising. `more` are headers besides every call's.
  void Call(uint32_t stream, std::string_view path, std::string_view more = "");
  // Sends the part of `bytes` on `stream` that the server's windows admit. Returns its size; 0 also if the stream has
  // ended.
  size_t SendData(uint32_t stream, std::string_view bytes);
  // Sends a message of gRPC whole, without waiting for windows: the server's first ones must admit it.
  void SendMessage(uint32_t stream, std::string_view message);
  // Ends the client's side of the stream.
  void HalfClose(uint32_t stream);
  // Reads the server's bytes, waiting at most `milliseconds` for the first one. False if none came.
  bool Receive(int milliseconds);
  // The server has ended the stream.
  bool ended(uint32_t stream) const { return !windows_.contains(stream); }
  // Headers and trailers of the connection's calls so far, as HPACK has them. gRPC writes them in plain letters, and
  // binary ones as they are.
  const std::string& headers() const { return headers_; }

 private:
  void Send(std::string_view bytes);
  void Take(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);

  int fd_;
  std::string received_;
  std::string headers_;
  int64_t initial_window_ = 65535;
  int64_t window_ = 65535;               // the connection's
  std::map<uint32_t, int64_t> windows_;  // of streams that have not ended
};

}  // namespace sortition::server
