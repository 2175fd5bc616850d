// A message in an arena, whose parts are freed together.
#pragma once

#include <memory>

#include "google/protobuf/arena.h"
#include "google/protobuf/stubs/common.h"

namespace sortition::service {

// Returns a new message in the arena, by the name that this version of protobuf has for that.
template <typename Message>
Message* NewInArena(google::protobuf::Arena* arena) {
#if GOOGLE_PROTOBUF_VERSION < 4025000
  return google::protobuf::Arena::CreateMessage<Message>(arena);
#else
  return google::protobuf::Arena::Create<Message>(arena);
#endif
}

// Returns a new message that has an arena for itself.
template <typename Message>
std::shared_ptr<Message> NewWithArena() {
  google::protobuf::ArenaOptions options;
  options.max_block_size = 256 << 10;
  const auto arena = std::make_shared<google::protobuf::Arena>(options);
  return {arena, NewInArena<Message>(arena.get())};
}

}  // namespace sortition::service
