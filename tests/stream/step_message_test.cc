// The draft probabilities of a step: read where they lie, or copied once.
#include "service/stream/step_message.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/recording_sink.h"
#include "tests/support/session.h"

namespace sortition::service::step_message_test {
namespace {

constexpr uint32_t kVocabulary = 64;

// A step of two draft rows, the first of which comes in two pieces. Several rows may name each.
TEST(StepMessage, DraftRowInPiecesIsCopiedOnce) {
  const std::vector<float> first(kVocabulary, 0.25f), second(kVocabulary, 0.5f);
  StepBuilder builder(1, kVocabulary);
  builder.AddRow("a", 1, 0, F32Peak(kVocabulary, 1)).mutable_verify_draft()->set_draft_row(0);
  builder.AddDraftRow(first);
  builder.AddDraftRow(second);
  const auto bytes = std::make_shared<std::string>(builder.Build().SerializeAsString());
  const size_t begin = bytes->find(F32Bytes(first) + F32Bytes(second));
  ASSERT_NE(begin, std::string::npos);
  const size_t cut = begin + kVocabulary;
  const auto* const data = reinterpret_cast<const std::byte*>(bytes->data());
  const devices::ByteSegment pieces[] = {{data, cut}, {data + cut, bytes->size() - cut}};

  TestEngine engine = TestEngine::OnCpu();
  StepMessage message(engine.get(),
                      std::make_shared<StreamContext>(Limits(), "tenant", std::make_shared<testing::RecordingSink>()),
                      std::get<Frame>(DecodeFrame(pieces, bytes)), {}, absl::UnixEpoch());
  message.SetShape(std::get<StepShape>(ParseStepShape(message.step(), message.payloads(), Limits())));
  const std::byte* const copy = message.DraftRow(0);
  EXPECT_EQ(std::memcmp(copy, first.data(), first.size() * sizeof(float)), 0);
  (*bytes)[begin] = '\x7f';
  EXPECT_EQ(message.DraftRow(0), copy);
  EXPECT_EQ(std::memcmp(copy, first.data(), first.size() * sizeof(float)), 0) << "the same copy, not made again";
  EXPECT_EQ(message.DraftRow(1), data + begin + first.size() * sizeof(float)) << "in one piece, which is not copied";
}

}  // namespace
}  // namespace sortition::service::step_message_test
