// Messages: bytes in pieces are parsed and compared with protobuf's result; then a stream gets them.
#include "service/wire/frame.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/wire/strictness.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/messages.h"
#include "tests/support/recording_sink.h"
#include "tests/support/test_engine.h"

namespace sortition::fuzz {
namespace {

using service::Frame;
using service::Refusal;

testing::Delivery InPieces(std::string bytes, Input* input) {
  std::vector<size_t> cuts(input->Below(4));
  for (size_t& cut : cuts) cut = input->Below(uint32_t(bytes.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  return testing::Deliver(std::move(bytes), cuts);
}

std::string Joined(const service::Payload& payload) {
  std::string bytes;
  for (const devices::ByteSegment& segment : payload.segments) {
    bytes.append(reinterpret_cast<const char*>(segment.data), segment.size);
  }
  // Planted defect: a decoder loses a byte where two pieces meet.
  if (planted && payload.segments.size() > 1) bytes.pop_back();
  return bytes;
}

void ExpectEqual(const Frame& frame, v1::StreamRequest parsed) {
  if (int(frame.payloads.size()) != parsed.payloads_size()) Fail("another number of payloads");
  for (int i = 0; i < parsed.payloads_size(); ++i) {
    if (Joined(frame.payloads[size_t(i)]) != parsed.payloads(i)) Fail(absl::StrCat("another payload ", i));
  }
  parsed.clear_payloads();
  if (frame.message.SerializeAsString() != parsed.SerializeAsString()) Fail("another message");
  const bool has_unknown = service::FindUnknown(parsed, "").has_value();
  if (has_unknown && !frame.scan.may_have_unknown) Fail("something unknown was not seen");
  if (!has_unknown && frame.scan.may_have_unknown && frame.scan.set_twice.empty()) Fail("nothing is unknown");
}

void Compare(const std::variant<Frame, Refusal>& decoded, const std::string& bytes) {
  v1::StreamRequest parsed;
  const bool is_message = parsed.ParseFromString(bytes);
  if (const auto* frame = std::get_if<Frame>(&decoded)) {
    if (!is_message) Fail("a frame was decoded from bytes that protobuf refuses");
    if (frame->bytes != bytes.size()) Fail("a frame of another size");
    return ExpectEqual(*frame, std::move(parsed));
  }
  // The service is stricter than protobuf with bytes that no encoder writes, but takes every encoder's bytes.
  if (!is_message || parsed.payloads_size() > int(service::kMaxPayloads)) return;
  parsed.DiscardUnknownFields();
  const testing::Delivery written = testing::Deliver(parsed.SerializeAsString());
  const auto again = service::DecodeFrame(written.segments, written.bytes);
  if (const auto* refusal = std::get_if<Refusal>(&again)) {
    if (refusal->reason == service::Reason::kMalformedMessage)
      Fail("refused what protobuf writes: " + refusal->message);
    return;
  }
  ExpectEqual(std::get<Frame>(again), std::move(parsed));
}

service::Limits SmallLimits() {
  service::Limits limits;
  limits.max_vocabulary = 5000;
  return limits;
}

}  // namespace

// The first byte says how many messages there are; each comes with two bytes of length.
void Run(Bytes bytes) {
  Input input(bytes);
  testing::TestEngine engine = testing::TestEngine::OnFake(SmallLimits());
  const auto sink = std::make_shared<testing::RecordingSink>();
  service::Session session(engine.get(), "fuzz", sink);
  for (uint32_t left = 1 + input.Below(8); left > 0; --left) {
    const uint32_t size = input.Byte() << 8 | input.Byte();
    const Bytes message = input.Take(size);
    const std::string text(message.begin(), message.end());
    const testing::Delivery delivery = InPieces(text, &input);
    std::variant<Frame, Refusal> decoded = service::DecodeFrame(delivery.segments, delivery.bytes);
    Compare(decoded, text);
    if (auto* frame = std::get_if<Frame>(&decoded)) {
      session.OnFrame(std::move(*frame));
    } else {
      session.OnRejectedFrame(std::get<Refusal>(decoded));
    }
    engine.fake().FinishAll();
    sink->LetLeave();
  }
  if (!session.Idle()) Fail("a message was never answered");
  session.Close();
}

}  // namespace sortition::fuzz
