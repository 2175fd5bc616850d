// The count of a connection's frames: the frames that end it, that pace it, and that an honest client may send.
#include "service/net/frame_meter.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/server/raw_http2.h"

namespace sortition::server::frame_meter_test {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();
constexpr uint8_t kEndStream = 1;

std::string Acknowledged() { return Http2Start() + Http2Frame(FrameType::kSettings, 1, 0, ""); }

std::string Reset(uint32_t stream) {
  return Http2Frame(FrameType::kReset, 0, stream, std::string_view("\0\0\0\10", 4));
}

FrameExcess Read(FrameMeter& meter, const std::string& bytes, absl::Time now = kStart) {
  return meter.Read(bytes.data(), bytes.size(), now);
}

// Sends `frame` a thousand times at once.
FrameExcess Flood(const std::string& frame) {
  FrameMeter meter(kStart);
  Read(meter, Acknowledged());
  for (int i = 0; i < 1000; ++i) Read(meter, frame);
  return Read(meter, "");
}

TEST(FrameMeterTest, FloodsAreEndedByName) {
  EXPECT_EQ(Flood(Http2Frame(FrameType::kSettings, 0, 0, "")), FrameExcess::kSettings);
  EXPECT_EQ(Flood(Http2Frame(FrameType::kPing, 0, 0, "12345678")), FrameExcess::kPings);
  EXPECT_EQ(Flood(Http2Frame(FrameType::kData, 0, 1, "")), FrameExcess::kEmptyData);
  EXPECT_EQ(Flood(Http2Frame(FrameType::kContinuation, 0, 1, "")), FrameExcess::kHeaderBlock);
  EXPECT_EQ(Flood(Http2Frame(static_cast<FrameType>(0x42), 0, 1, "x")), FrameExcess::kOtherFrames);
  EXPECT_EQ(Flood(Reset(1)), FrameExcess::kResets);
  FrameMeter meter(kStart);
  EXPECT_EQ(Read(meter, "GET / HTTP/1.1"), FrameExcess::kNotHttp2);
}

// Deciphering 50 unknown frames of 16 KB took honest clients' processor time.
TEST(FrameMeterTest, PayloadsOfRareFramesCount) {
  const std::string large = Http2Frame(static_cast<FrameType>(0x42), 0, 1, std::string(16'384, 'x'));
  FrameMeter meter(kStart);
  Read(meter, Acknowledged());
  int frames = 0;
  while (Read(meter, large) == FrameExcess::kNone) ASSERT_LT(++frames, 5);
}

TEST(FrameMeterTest, VerdictIsTheSameByteByByte) {
  FrameMeter meter(kStart);
  std::string bytes = Acknowledged();
  for (uint32_t stream = 1; stream < 401; stream += 2) {
    bytes += Http2Frame(FrameType::kHeaders, kEndHeaders, stream, CallHeaders("/a/b")) + Reset(stream);
  }
  FrameExcess excess = FrameExcess::kNone;
  for (const char byte : bytes) excess = meter.Read(&byte, 1, kStart);
  EXPECT_EQ(excess, FrameExcess::kResets);
}

TEST(FrameMeterTest, CallsBeforeTheAcknowledgementEnd) {
  FrameMeter meter(kStart);
  Read(meter, Http2Start());
  FrameExcess excess = FrameExcess::kNone;
  for (uint32_t i = 0; i < 101; ++i) {
    excess = Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, 2 * i + 1, CallHeaders("/a/b")));
    EXPECT_EQ(excess == FrameExcess::kNone, i < 100);
  }
  EXPECT_EQ(excess, FrameExcess::kUnacknowledged);
}

TEST(FrameMeterTest, CallsBeyondTheBudgetWait) {
  FrameMeter meter(kStart);
  Read(meter, Acknowledged());
  uint32_t stream = 1;
  while (meter.MayRead(kStart) != 0) {
    ASSERT_EQ(Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, stream, CallHeaders("/a/b"))),
              FrameExcess::kNone);
    stream += 2;
  }
  EXPECT_LE(stream / 2, static_cast<uint32_t>(FrameLimits().new_calls.burst) + 1);
  EXPECT_GT(meter.MayRead(kStart + absl::Seconds(1)), 0u);
  meter.AddAnswer(kStart);
  EXPECT_GT(meter.MayRead(kStart), 0u);
}

// gRPC holds what has come of a message, up to 32 MB each. Four connections' unfinished messages took all its memory,
// and workers lost their streams.
TEST(FrameMeterTest, UnfinishedMessagesOfStrangersWait) {
  const std::string headers = CallHeaders("/grpc.health.v1.Health/Check");
  const std::string piece(16'384, 'x');
  const uint64_t most = FrameLimits().unfinished_bytes;
  FrameMeter meter(kStart);
  Read(meter, Acknowledged());
  uint32_t stream = 1;
  for (uint64_t sent = 0; sent <= most; sent += piece.size(), stream += 2) {
    EXPECT_GT(meter.MayRead(kStart), 0u) << sent;
    Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, stream, headers));
    Read(meter, Http2Frame(FrameType::kData, 0, stream, piece));
  }
  const absl::Time late = kStart + FrameLimits().unfinished_wait + absl::Seconds(1);
  EXPECT_EQ(meter.MayRead(late), 0u);
  EXPECT_FALSE(meter.IsOverdue(kStart + absl::Seconds(1)));
  EXPECT_TRUE(meter.IsOverdue(late));
  FrameMeter authorised = meter;
  authorised.AddCaller();
  EXPECT_GT(authorised.MayRead(late), 0u);
  EXPECT_FALSE(authorised.IsOverdue(late));
  Read(meter, Reset(1), late);
  EXPECT_GT(meter.MayRead(late), 0u);
  EXPECT_FALSE(meter.IsOverdue(late));
}

TEST(FrameMeterTest, FinishedMessagesCountNoMore) {
  FrameMeter meter(kStart);
  Read(meter, Acknowledged());
  absl::Time now = kStart;
  for (uint32_t stream = 1; stream < 2'001; stream += 2, now += absl::Milliseconds(100)) {
    Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, stream, CallHeaders("/a/b")), now);
    Read(meter, Http2Frame(FrameType::kData, 0, stream, std::string(500, 'x')), now);
    Read(meter, Http2Frame(FrameType::kData, kEndStream, stream, std::string(500, 'x')), now);
    ASSERT_GT(meter.MayRead(now), 0u) << stream;
  }
}

// Sends two messages in pieces of several sizes. The second has no end.
TEST(FrameMeterTest, BytesOfBegunMessagesAreCounted) {
  const std::string messages = std::string("\0\0\0\0\3abc", 8) + std::string("\0\0\0\1\4", 5) + std::string(40, 'x');
  for (const size_t piece : {1, 2, 3, 7, 9, 53}) {
    FrameMeter meter(kStart);
    Read(meter, Acknowledged());
    Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, 1, CallHeaders("/a/b")));
    meter.AddCaller();
    for (size_t at = 0; at < messages.size(); at += piece) {
      EXPECT_EQ(meter.begun_bytes(), at == 8 || at == 0 ? 0 : at < 8 ? at : at - 8) << piece << " " << at;
      Read(meter, Http2Frame(FrameType::kData, 0, 1, messages.substr(at, piece)));
    }
    EXPECT_EQ(meter.begun_bytes(), 45u);
    FrameMeter ended = meter;
    Read(ended, Reset(1));
    EXPECT_EQ(ended.begun_bytes(), 0u);
    Read(meter, Http2Frame(FrameType::kData, kEndStream, 1, "x"));
    EXPECT_EQ(meter.begun_bytes(), 0u);
  }
}

// The bytes of a stream that is followed no more may be a part of a long message.
TEST(FrameMeterTest, StreamsThatAreNotFollowedCount) {
  FrameLimits limits;
  limits.followed_streams = 2;
  FrameMeter meter(kStart, limits);
  Read(meter, Acknowledged());
  meter.AddCaller();
  const std::string whole("\0\0\0\0\1x", 6);
  for (const uint32_t stream : {1, 3, 5}) {
    Read(meter, Http2Frame(FrameType::kHeaders, kEndHeaders, stream, CallHeaders("/a/b")));
    Read(meter, Http2Frame(FrameType::kData, 0, stream, whole));
  }
  EXPECT_EQ(meter.begun_bytes(), 0u);
  Read(meter, Http2Frame(FrameType::kData, 0, 3, whole));
  EXPECT_EQ(meter.begun_bytes(), 0u);
  Read(meter, Http2Frame(FrameType::kData, 0, 1, whole));
  EXPECT_EQ(meter.begun_bytes(), whole.size());
}

// Five thousand calls a second, and a ping now and then. Deadlines cancel one call in five 2 ms after it began.
TEST(FrameMeterTest, BusySharerIsNeverEnded) {
  FrameMeter meter(kStart);
  absl::Time now = kStart;
  Read(meter, Acknowledged(), now);
  const std::string headers = CallHeaders("/sortition.v1.SamplingService/Sample");
  uint32_t stream = 1;
  for (int millisecond = 0; millisecond < 20'000; ++millisecond) {
    now += absl::Milliseconds(1);
    std::string bytes;
    for (int i = 0; i < 5; ++i, stream += 2) {
      bytes += Http2Frame(FrameType::kHeaders, kEndHeaders, stream, headers);
      bytes += Http2Frame(FrameType::kData, kEndStream, stream, std::string(600, 'x'));
      bytes += Http2Frame(FrameType::kWindowUpdate, 0, stream, std::string_view("\0\0\1\0", 4));
      meter.AddAnswer(now);
    }
    if (millisecond > 2) bytes += Reset(stream - 20);
    if (millisecond % 10 == 0) bytes += Http2Frame(FrameType::kPing, 0, 0, "12345678");
    ASSERT_GT(meter.MayRead(now), bytes.size());
    ASSERT_EQ(Read(meter, bytes, now), FrameExcess::kNone);
  }
}

// A proxy that puts clients on one connection: the calls of honest ones that are answered pay for another's resets. If
// all calls are reset, the connection is ended.
TEST(FrameMeterTest, AnsweredCallsPayForASharersResets) {
  FrameMeter meter(kStart);
  absl::Time now = kStart;
  Read(meter, Acknowledged(), now);
  const std::string headers = CallHeaders("/sortition.v1.SamplingService/Sample");
  uint32_t stream = 1;
  const auto call = [&] { return Http2Frame(FrameType::kHeaders, kEndHeaders, stream, headers); };
  for (int millisecond = 0; millisecond < 20'000; ++millisecond) {
    now += absl::Milliseconds(1);
    std::string bytes = call() + Reset(stream);
    stream += 2;
    bytes += call();
    stream += 2;
    meter.AddAnswer(now);
    ASSERT_EQ(Read(meter, bytes, now), FrameExcess::kNone);
  }
  FrameExcess excess = FrameExcess::kNone;
  for (int i = 0; i < 30'000 && excess == FrameExcess::kNone; ++i, stream += 2) {
    excess = Read(meter, call() + Reset(stream), now);
  }
  EXPECT_EQ(excess, FrameExcess::kResets);
}

}  // namespace
}  // namespace sortition::server::frame_meter_test
