// Rings: an honest writer's messages arrive whole and in order, and a dishonest end that writes into the shared memory
// harms only itself.
#include "service/memory/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace sortition::fuzz {
namespace {

using service::RingStatus;

// Returns `size` bytes. Each byte depends on its place.
std::string Message(uint32_t number, uint64_t size) {
  std::string message(size, '\0');
  for (uint64_t i = 0; i < size; i += 61) message[i] = char(number + i);
  return message;
}

// Maps memory with nothing behind it: an access beyond the end faults.
std::byte* SharedMemory() {
  static std::byte* const memory = [] {
    const size_t guard = 1 << 16;
    auto* base = static_cast<std::byte*>(mmap(nullptr, service::kRingPairBytes + 2 * guard, PROT_NONE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base == MAP_FAILED) Fail("no memory");
    if (mprotect(base + guard, service::kRingPairBytes, PROT_READ | PROT_WRITE) != 0) Fail("no memory");
    return base + guard;
  }();
  std::memset(memory, 0, service::kRingWordsBytes);
  return memory;
}

// Both ends of one direction, and an intruder.
class World {
 public:
  explicit World(Input* input) : input_(*input) {}

  void Act() {
    switch (input_.Below(8)) {
      case 0:
      case 1:
      case 2:
        return Put();
      case 3:
      case 4:
      case 5:
        return Take();
      case 6:
        return is_honest_ ? Put() : Scribble();
      default:
        if (input_.OneIn(4)) is_honest_ = false;
    }
  }

 private:
  void Put() {
    const uint64_t size = input_.OneIn(8) ? 1 + input_.Below(service::kMostRingMessageBytes) : 1 + input_.Below(300);
    const std::string message = Message(++number_, size);
    const uint64_t first = input_.Below(uint32_t(size + 1));
    const auto bytes = std::as_bytes(std::span(message));
    const std::span<const std::byte> parts[] = {bytes.first(first), bytes.subspan(first)};
    const RingStatus status = writer_.Put(parts);
    if (!is_honest_) return;
    const uint64_t needed = 8 + (size + 7) / 8 * 8;
    if ((status == RingStatus::kDone) != (needed <= service::kRingBytes - unread_)) Fail("a wrong word about room");
    if (status == RingStatus::kBroken) Fail("an honest reader is called broken");
    if (status != RingStatus::kDone) return;
    unread_ += needed;
    waiting_.push_back(message);
  }

  void Take() {
    std::string message;
    const bool has_more = reader_.HasMore();
    const RingStatus status = reader_.Take(&message);
    if (message.size() > service::kMostRingMessageBytes) Fail("a message that is too large");
    if ((status == RingStatus::kNotNow) == has_more) Fail("a wrong word about what there is");
    if (!is_honest_) return;
    if (waiting_.empty()) {
      if (status != RingStatus::kNotNow) Fail("a message that nobody wrote");
      return;
    }
    // Planted defect: a reader forgets where the ring ends.
    if (planted && message.size() > 1000 && number_ % 8 == 7) message.back() ^= 1;
    if (status != RingStatus::kDone || message != waiting_.front()) Fail("another message than was written");
    unread_ -= 8 + (message.size() + 7) / 8 * 8;
    waiting_.pop_front();
  }

  // Writes words and bytes as no honest end of a ring would.
  void Scribble() {
    service::RingWords& words = *rings_.request_words;
    const uint64_t near = words.read.load() + 8 * uint64_t{input_.Below(64)};
    const uint64_t value = input_.OneIn(2) ? near : uint64_t{input_.Word()} << input_.Below(33);
    switch (input_.Below(4)) {
      case 0:
        return words.written.store(value);
      case 1:
        return words.read.store(value);
      case 2:
        return words.asleep.store(uint32_t(value));
      default: {
        // The length of the message that comes next, or any bytes.
        const uint64_t at =
            input_.OneIn(2) ? words.read.load() % service::kRingBytes : input_.Below(uint32_t(service::kRingBytes));
        const Bytes bytes = input_.Take(std::min<uint64_t>(4, service::kRingBytes - at));
        std::memcpy(rings_.request_bytes + at, bytes.data(), bytes.size());
      }
    }
  }

  Input& input_;
  const service::RingPair rings_{SharedMemory()};
  service::RingWriter writer_{rings_.request_words, rings_.request_bytes};
  service::RingReader reader_{rings_.request_words, rings_.request_bytes};
  bool is_honest_ = true;
  std::deque<std::string> waiting_;
  uint64_t unread_ = 0;  // bytes
  uint32_t number_ = 0;
};

}  // namespace

void Run(Bytes bytes) {
  Input input(bytes);
  World world(&input);
  for (int acts = 0; acts < 200 && !input.empty(); ++acts) world.Act();
}

}  // namespace sortition::fuzz
