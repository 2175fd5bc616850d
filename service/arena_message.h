// A message in an arena, whose parts are freed together.
#pragma once

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

}  // namespace sortition::service
