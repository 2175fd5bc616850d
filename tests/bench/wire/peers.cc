// Forked processes and the ends of their connections.
#include "tests/bench/wire/peers.h"

#include <grpcpp/grpcpp.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/check.h"
#include "sortition/v1/sampling.grpc.pb.h"
#include "tests/bench/server.h"

namespace sortition::bench {
namespace {

constexpr size_t kReadBytes = 1 << 20;
constexpr int kSendBufferBytes = 1 << 20;

// False if the other end is gone.
bool ReadAll(int socket, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = read(socket, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int socket, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = send(socket, at, bytes, MSG_NOSIGNAL);
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

// Written so that compilers turn it into vector code.
uint32_t Largest(const void* data, size_t bytes) {
  std::array<uint32_t, 64> lanes = {};
  const auto* words = static_cast<const uint32_t*>(data);
  const size_t count = bytes / sizeof(uint32_t) / lanes.size();
  for (size_t i = 0; i < count; ++i) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = std::max(lanes[lane], words[i * lanes.size() + lane]);
    }
  }
  return *std::ranges::max_element(lanes);
}

struct Header {
  uint64_t bytes;
  uint64_t answer_bytes;
};

[[noreturn]] void ServeSocket(int socket, bool finds_maximum) {
  std::vector<uint32_t> buffer(kReadBytes / sizeof(uint32_t));
  Header header;
  while (ReadAll(socket, &header, sizeof(header))) {
    uint32_t largest = 0;
    for (uint64_t left = header.bytes; left > 0;) {
      const size_t run = std::min<uint64_t>(left, kReadBytes);
      if (!ReadAll(socket, buffer.data(), run)) _exit(1);
      if (finds_maximum) largest = std::max(largest, Largest(buffer.data(), run));
      left -= run;
    }
    buffer[0] = largest;
    if (!WriteAll(socket, buffer.data(), header.answer_bytes)) _exit(1);
  }
  _exit(0);
}

// Connected ends, ours first.
std::array<int, 2> ConnectTcp() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  SORTITION_CHECK(listener >= 0 && bind(listener, generic, size) == 0 && listen(listener, 1) == 0);
  SORTITION_CHECK(getsockname(listener, generic, &size) == 0);
  const int ours = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SORTITION_CHECK(ours >= 0 && connect(ours, generic, size) == 0);
  const int theirs = accept(listener, nullptr, nullptr);
  SORTITION_CHECK(theirs >= 0);
  close(listener);
  const int on = 1;
  for (const int end : {ours, theirs}) {
    SORTITION_CHECK(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return {ours, theirs};
}

std::array<int, 2> ConnectUnix() {
  std::array<int, 2> ends;
  SORTITION_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  for (const int end : ends) {
    SORTITION_CHECK(setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes)) == 0);
  }
  return ends;
}

void Wait(std::atomic<uint32_t>* word, uint32_t until) {
  for (uint32_t now; (now = word->load(std::memory_order_acquire)) != until;) {
    syscall(SYS_futex, word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

void Post(std::atomic<uint32_t>* word, uint32_t value) {
  word->store(value, std::memory_order_release);
  syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

class MaximumService final : public v1::SamplingService::Service {
  grpc::Status Stream(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) override {
    v1::StreamRequest request;
    while (stream->Read(&request)) {
      v1::StreamResponse response;
      const std::string& bytes = request.payloads(0);
      response.mutable_results()->add_rows()->mutable_draw()->set_token(Largest(bytes.data(), bytes.size()));
      stream->Write(response);
    }
    return grpc::Status::OK;
  }
};

}  // namespace

Peer::~Peer() = default;

void Peer::EndPeer() {
  kill(peer_, SIGKILL);
  waitpid(peer_, nullptr, 0);
}

RawSocketPeer::RawSocketPeer(Kind kind, int core, bool finds_maximum) {
  const auto [ours, theirs] = kind == Kind::kTcp ? ConnectTcp() : ConnectUnix();
  peer_ = fork();
  SORTITION_CHECK(peer_ >= 0);
  if (peer_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ours);
    RunOnCore(core);
    ServeSocket(theirs, finds_maximum);
  }
  close(theirs);
  socket_ = ours;
}

RawSocketPeer::~RawSocketPeer() {
  close(socket_);
  EndPeer();
}

void RawSocketPeer::Send(std::span<const std::span<const std::byte>> messages, size_t answer_bytes) {
  for (const auto& message : messages) {
    const Header header = {message.size(), answer_bytes};
    SORTITION_CHECK(WriteAll(socket_, &header, sizeof(header)) && WriteAll(socket_, message.data(), message.size()));
  }
  std::vector<std::byte> answers(messages.size() * answer_bytes);
  SORTITION_CHECK(ReadAll(socket_, answers.data(), answers.size()));
}

struct FutexPeer::Words {
  alignas(64) std::atomic<uint32_t> request;
  alignas(64) std::atomic<uint32_t> answer;
};

FutexPeer::FutexPeer(int core)
    : words_(static_cast<Words*>(
          mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  SORTITION_CHECK(words_ != MAP_FAILED);
  peer_ = fork();
  SORTITION_CHECK(peer_ >= 0);
  if (peer_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RunOnCore(core);
  for (uint32_t turn = 1;; ++turn) {
    Wait(&words_->request, turn);
    Post(&words_->answer, turn);
  }
}

FutexPeer::~FutexPeer() {
  EndPeer();
  munmap(words_, sizeof(Words));
}

void FutexPeer::RoundTrip() {
  const uint32_t turn = words_->request.load(std::memory_order_relaxed) + 1;
  Post(&words_->request, turn);
  Wait(&words_->answer, turn);
}

struct ProtobufPeer::Stream {
  explicit Stream(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub =
        v1::SamplingService::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    stream = stub->Stream(&context);
  }
  grpc::ClientContext context;
  std::unique_ptr<v1::SamplingService::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream;
};

ProtobufPeer::ProtobufPeer(int core) {
  std::array<int, 2> port_pipe;
  SORTITION_CHECK(pipe(port_pipe.data()) == 0);
  peer_ = fork();
  SORTITION_CHECK(peer_ >= 0);
  int port = 0;
  if (peer_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    RunOnCore(core);
    MaximumService service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    SORTITION_CHECK(write(port_pipe[1], &port, sizeof(port)) == sizeof(port));
    server->Wait();
    _exit(0);
  }
  SORTITION_CHECK(read(port_pipe[0], &port, sizeof(port)) == sizeof(port));
  close(port_pipe[0]);
  close(port_pipe[1]);
  address_ = "127.0.0.1:" + std::to_string(port);
}

ProtobufPeer::~ProtobufPeer() {
  if (stream_ != nullptr) {
    stream_->context.TryCancel();
    stream_->stream->Finish();
  }
  EndPeer();
}

void ProtobufPeer::Send(std::span<const std::span<const std::byte>> messages) {
  if (stream_ == nullptr) stream_ = std::make_unique<Stream>(address_);
  for (const auto& message : messages) {
    v1::StreamRequest request;
    request.add_payloads(message.data(), message.size());
    SORTITION_CHECK(stream_->stream->Write(request));
  }
  v1::StreamResponse response;
  for (size_t i = 0; i < messages.size(); ++i) SORTITION_CHECK(stream_->stream->Read(&response));
}

}  // namespace sortition::bench
