// A region of shared memory as its client maps it, and how messages name it.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <string_view>
#include <variant>

#include "service/memory/region_table.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

struct ClientRegion {
  ClientRegion(service::MemoryConnection* connection, uint64_t bytes) {
    auto made = connection->Register(bytes);
    auto& registered = std::get<service::MemoryConnection::Registered>(made);
    id = registered.id;
    size = registered.bytes;
    data = static_cast<std::byte*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, registered.descriptor.get(), 0));
  }
  ~ClientRegion() { munmap(data, size); }
  ClientRegion(const ClientRegion&) = delete;
  ClientRegion& operator=(const ClientRegion&) = delete;

  void Write(uint64_t offset, std::string_view bytes) { std::memcpy(data + offset, bytes.data(), bytes.size()); }

  uint64_t id = 0;
  uint64_t size = 0;
  std::byte* data = nullptr;
};

inline void SetRegion(uint64_t id, uint64_t offset, uint64_t length, v1::TensorSource* source) {
  source->mutable_region()->set_region_id(id);
  source->mutable_region()->set_offset(offset);
  source->mutable_region()->set_length(length);
}

inline v1::StreamRequest Attach(const service::MemoryConnection& connection) {
  v1::StreamRequest message;
  message.mutable_attach_memory()->set_token(connection.token());
  return message;
}

}  // namespace sortition::testing
