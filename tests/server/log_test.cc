// Log lines: JSON, levels and the bound on lines a second.
#include "service/log/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/server/json.h"

namespace sortition::server::log_test {
namespace {

class LogTest : public ::testing::Test {
 protected:
  JsonObject Last() {
    auto parsed = ParseJson(lines_.back());
    EXPECT_TRUE(parsed) << lines_.back();
    return parsed.value_or(JsonObject());
  }

  absl::Time time_ = absl::FromUnixSeconds(1'700'000'000);
  std::vector<std::string> lines_;
  Log log_{LogLevel::kInfo, [this](std::string_view line) { lines_.emplace_back(line); }, [this] { return time_; }};
};

TEST_F(LogTest, WritesOneObjectPerLine) {
  log_.Write(LogLevel::kWarning, "happened", {{"text", "a"}, {"number", -3}, {"real", 0.5}});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find('\n'), lines_[0].size() - 1);
  const JsonObject line = Last();
  EXPECT_EQ(JsonText(line, "time"), "2023-11-14T22:13:20.000000Z");
  EXPECT_EQ(JsonText(line, "level"), "warning");
  EXPECT_EQ(JsonText(line, "event"), "happened");
  EXPECT_EQ(JsonText(line, "text"), "a");
  EXPECT_EQ(line.at("number"), JsonValue(-3.0));
  EXPECT_EQ(line.at("real"), JsonValue(0.5));
}

TEST_F(LogTest, AnyTextRoundTrips) {
  std::string text;
  for (int c = 0; c < 128; ++c) text.push_back(static_cast<char>(c));
  text += "\xc3\xa9 \xe2\x82\xac";
  log_.Write(LogLevel::kInfo, "happened", {{"text", text}});
  EXPECT_EQ(JsonText(Last(), "text"), text);
}

TEST_F(LogTest, NumbersThatJsonLacksAreNull) {
  log_.Write(LogLevel::kInfo, "happened", {{"n", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(Last().at("n"), JsonValue(nullptr));
}

TEST_F(LogTest, ReaderRefusesNonObjects) {
  for (const char* text :
       {"", "{}", "{\"a\":1", "{\"a\":1}x", "{\"a\":}", "{\"a\":1,\"a\":2}", "{\"a\":\"\n\"}", "{'a':1}"}) {
    EXPECT_FALSE(ParseJson(text)) << text;
  }
}

TEST_F(LogTest, DropsLinesBelowItsLevel) {
  log_.Write(LogLevel::kDebug, "happened");
  EXPECT_TRUE(lines_.empty());
  log_.Write(LogLevel::kError, "happened");
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(LogTest, EventFloodIsCountedNotWritten) {
  for (uint32_t i = 0; i < Log::kLinesPerSecond + 25; ++i) log_.Write(LogLevel::kInfo, "flood");
  EXPECT_EQ(lines_.size(), Log::kLinesPerSecond);
  log_.Write(LogLevel::kInfo, "another");
  EXPECT_EQ(lines_.size(), Log::kLinesPerSecond + 1);
  time_ += absl::Seconds(1);
  log_.Write(LogLevel::kInfo, "flood");
  EXPECT_EQ(Last().at("suppressed"), JsonValue(25.0));
  log_.Write(LogLevel::kInfo, "flood");
  EXPECT_FALSE(Last().contains("suppressed"));
}

// All are logged at once: the bound on lines a second is for clients' events.
TEST_F(LogTest, SequencesOfAWrongDeviceAreNamed) {
  service::DeviceEvent event;
  event.device = "cuda0";
  event.state = service::DeviceState::kQuarantined;
  for (size_t i = 0; i < service::DeviceEvent::kMostSequences; ++i)
    event.sequences.push_back(absl::StrCat("request-", i));
  LoggedEvents(&log_).DeviceChanged(event);
  std::set<std::string> named;
  for (const std::string& line : lines_) {
    const auto parsed = ParseJson(line);
    ASSERT_TRUE(parsed) << line;
    if (JsonText(*parsed, "event") != "touched_sequence") continue;
    for (const auto name : absl::StrSplit(JsonText(*parsed, "request_ids"), ' ')) named.insert(std::string(name));
  }
  EXPECT_EQ(named, std::set<std::string>(event.sequences.begin(), event.sequences.end()));
}

// A reader that stands still, such as a container's runtime, does not stop the server.
TEST(LineWriterTest, LinesForWhichAPipeHasNoRoomAreLostAndCounted) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  LineWriter writer(ends[1]);
  const std::string line = "{\"text\":\"" + std::string(1000, 'x') + "\"}\n";
  constexpr size_t kLines = 1000;
  ASSERT_LT(fcntl(ends[1], F_GETPIPE_SZ), static_cast<int>(kLines * line.size()));
  for (size_t i = 0; i < kLines; ++i) writer.Write(line);
  std::string read_out;
  const auto drain = [&] {
    int there = 0;
    while (ioctl(ends[0], FIONREAD, &there) == 0 && there > 0) {
      std::string part(static_cast<size_t>(there), '\0');
      part.resize(static_cast<size_t>(read(ends[0], part.data(), part.size())));
      read_out += part;
    }
  };
  drain();
  ASSERT_EQ(read_out.size() % line.size(), 0u) << "lines are whole";
  const size_t written = read_out.size() / line.size();
  EXPECT_GT(written, 0u);
  ASSERT_LT(written, kLines);
  read_out.clear();
  writer.Write("{\"a\":1}\n");
  writer.Write("{\"a\":1}\n");
  drain();
  EXPECT_EQ(read_out, absl::StrCat("{\"a\":1,\"lost\":", kLines - written, "}\n{\"a\":1}\n"));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace sortition::server::log_test
