// The calls by which gRPC reads its connections, with the guard before them. They replace the C library's and OpenSSL's
// for the whole process, and pass on calls for other connections.
#include <dlfcn.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/check.h"
#include "service/net/http2_guard.h"

namespace {

using sortition::server::Http2Guard;

// Returns the definition of `name` that would be called if this file had none.
template <typename Function>
Function* Next(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  SORTITION_CHECK(found != nullptr);
  return reinterpret_cast<Function*>(found);
}

const Http2Guard::Calls& Real() {
  static const Http2Guard::Calls calls = {.recvmsg = Next<ssize_t(int, msghdr*, int)>("recvmsg"),
                                          .epoll_ctl = Next<int(int, int, int, epoll_event*)>("epoll_ctl"),
                                          .ssl_read = Next<int(SSL*, void*, int)>("SSL_read"),
                                          .getpeername = Next<int(int, sockaddr*, socklen_t*)>("getpeername")};
  return calls;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (!Http2Guard::Guards(fd)) return Real().recvmsg(fd, message, flags);
  return Http2Guard::Instance().Receive(Real(), fd, message, flags);
}

__attribute__((visibility("default"))) int SSL_read(SSL* tls, void* bytes, int size) {
  if (!Http2Guard::IsUsed()) return Real().ssl_read(tls, bytes, size);
  return Http2Guard::Instance().ReadTls(Real(), tls, bytes, size);
}

__attribute__((visibility("default"))) int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  if (Http2Guard::Guards(fd)) Http2Guard::Instance().OnPoll(Real(), epoll, operation, fd, event);
  return Real().epoll_ctl(epoll, operation, fd, event);
}

__attribute__((visibility("default"))) int close(int fd) {
  static int (*const real)(int) = Next<int(int)>("close");
  if (Http2Guard::Guards(fd)) Http2Guard::Instance().OnClose(fd);
  return real(fd);
}

__attribute__((visibility("default"))) int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  if (!Http2Guard::Guards(fd)) return Real().getpeername(fd, address, size);
  return Http2Guard::Instance().NamePeer(Real(), fd, address, size);
}

}  // extern "C"
