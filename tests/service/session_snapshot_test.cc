// Export and import: a sequence's state as a message with which another server continues.
#include <gtest/gtest.h>

#include <functional>

#include "sortition/v1/sequence_snapshot.pb.h"
#include "tests/service/expect_error.h"
#include "tests/service/stateful_stream.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service {
namespace {

using testing::PlainSequence;
using testing::StreamWorker;
using testing::TestEngine;

class SessionSnapshot : public ::testing::Test {
 protected:
  SessionSnapshot() {
    first_.MustOpen(open_);
    Draw(first_, 1, 20);
    Draw(first_, 2, 21);
  }

  void Draw(StreamWorker& worker, uint64_t step_id, uint32_t token) {
    EXPECT_EQ(worker.Run(PeakStep(++batch_, "a", step_id, plain_, token)).at(0).draw().token(), token);
    plain_.Append(token);
  }
  static v1::OpenSequence Long(std::string_view request_id, uint32_t tokens) {
    v1::OpenSequence open = StatefulOpen(request_id, 1);
    open.mutable_history()->clear_tokens();
    for (uint32_t i = 0; i < tokens; ++i) open.mutable_history()->add_tokens(i * i % 61);
    return open;
  }
  static v1::SequenceExported Export(StreamWorker& worker, std::string_view id) {
    v1::StreamRequest request;
    request.mutable_export_sequence()->set_request_id(std::string(id));
    worker.Send(request);
    v1::SequenceExported whole;
    do {
      const auto response = worker.Await([](const auto& message) { return message.has_exported(); });
      if (!response || response->exported().has_error()) return response->exported();
      whole.mutable_state()->append(response->exported().state());
      whole.set_continues(response->exported().continues());
    } while (whole.continues());
    return whole;
  }
  v1::StreamRequest ImportOf(std::string state, bool continues = false) const {
    v1::StreamRequest request;
    *request.mutable_import_sequence()->mutable_open() = Reopened(open_, 1);
    request.mutable_import_sequence()->set_state(std::move(state));
    request.mutable_import_sequence()->set_continues(continues);
    return request;
  }
  static v1::SequenceOpened Import(StreamWorker& worker, const v1::StreamRequest& request) {
    worker.Send(request);
    return worker.Await([](const auto& message) { return message.has_opened(); })->opened();
  }

  TestEngine engine_ = TestEngine::OnCpu();
  TestEngine other_ = TestEngine::OnCpu();
  StreamWorker first_{engine_.get()};
  StreamWorker second_{other_.get()};
  const v1::OpenSequence open_ = StatefulOpen("a", 1);
  PlainSequence plain_{open_};
  uint64_t batch_ = 0;
};

TEST_F(SessionSnapshot, ContinuesElsewhereWithoutHistory) {
  const v1::SequenceExported exported = Export(first_, "a");
  ASSERT_FALSE(exported.has_error()) << exported.error().message();
  const v1::SequenceOpened opened = Import(second_, ImportOf(exported.state()));
  ASSERT_TRUE(opened.has_state()) << opened.error().message();
  EXPECT_EQ(opened.state().position(), 5u);
  EXPECT_EQ(opened.state().history_hash(), plain_.hash());
  Draw(second_, 3, 22);
}

TEST_F(SessionSnapshot, PiecesEqualWhole) {
  const std::string state = Export(first_, "a").state();
  second_.Send(ImportOf(state.substr(0, 5), true));
  second_.Send(ImportOf("", true));
  EXPECT_EQ(second_.sink().size(), 0u);
  ASSERT_TRUE(Import(second_, ImportOf(state.substr(5))).has_state());
  Draw(second_, 3, 22);
}

// The thread that serves the stream serves others between the pieces.
TEST_F(SessionSnapshot, LongSnapshotIsBuiltInPieces) {
  v1::OpenSequence open = Long("long", 24'000);
  open.mutable_parameters()->mutable_dry()->set_multiplier(0.01f);
  const v1::OpenedState state = first_.MustOpen(open);
  v1::StreamRequest request = ImportOf(Export(first_, "long").state());
  *request.mutable_import_sequence()->mutable_open() = Reopened(open, 1);
  const testing::Delivery delivery = testing::Deliver(request.SerializeAsString());
  auto frame = DecodeFrame(delivery.segments, delivery.bytes);
  Session& session = second_.session();
  session.BeginFrame(std::move(std::get<Frame>(frame)));
  int pieces = 1;
  for (; second_.sink().size() == 0; ++pieces) {
    ASSERT_GT(session.back_off(), absl::ZeroDuration());
    session.Continue();
  }
  EXPECT_EQ(pieces, 3);
  const auto opened = second_.Await([](const v1::StreamResponse& response) { return response.has_opened(); });
  ASSERT_TRUE(opened && opened->opened().has_state()) << opened->ShortDebugString();
  EXPECT_EQ(opened->opened().state().position(), 24'000u);
  EXPECT_EQ(opened->opened().state().history_hash(), state.history_hash());
  const v1::StreamRequest step = PeakStep(100, "long", 1, PlainSequence(open), 20);
  EXPECT_EQ(second_.Run(step).at(0).SerializeAsString(), first_.Run(step).at(0).SerializeAsString());

  // Other counts than its tokens have.
  v1::SequenceSnapshot snapshot;
  ASSERT_TRUE(snapshot.ParseFromString(request.import_sequence().state()));
  snapshot.set_in_output(3, snapshot.in_output(3) + 1);
  snapshot.set_in_output(4, snapshot.in_output(4) - 1);
  request.mutable_import_sequence()->set_state(snapshot.SerializeAsString());
  request.mutable_import_sequence()->mutable_open()->set_epoch(2);
  ExpectError(Import(second_, request).error(), Reason::kContradiction, "import_sequence.state");
}

// A snapshot without the start of its history cannot be built in pieces, so its size is bounded.
TEST_F(SessionSnapshot, LongSnapshotWithoutStartNeedsHistory) {
  v1::OpenSequence open = Long("long", 48'000);
  open.mutable_parameters()->mutable_dry()->set_multiplier(0.01f);
  for (const uint32_t window : {10'000u, 20'000u}) {
    open.mutable_parameters()->mutable_dry()->set_window(window);
    open.set_epoch(open.epoch() + 1);
    first_.MustOpen(open);
    v1::StreamRequest request = ImportOf(Export(first_, "long").state());
    *request.mutable_import_sequence()->mutable_open() = Reopened(open, open.epoch());
    const v1::SequenceOpened opened = Import(second_, request);
    if (window == 10'000u) {
      EXPECT_TRUE(opened.has_state()) << opened.ShortDebugString();
    } else {
      ExpectError(opened.error(), Reason::kHistoryRequired, "import_sequence.state.kept");
    }
  }
}

TEST_F(SessionSnapshot, SizeIsLinearInKeptState) {
  v1::OpenSequence large = StatefulOpen("large", 1);
  for (int i = 0; i < 100'000; ++i) large.mutable_history()->add_tokens(static_cast<uint32_t>(i % 60));
  first_.MustOpen(large);
  EXPECT_LT(Export(first_, "large").state().size(), 16u << 10);
}

TEST_F(SessionSnapshot, InvalidExportIsRefusedByName) {
  ExpectError(Export(first_, "nobody").error(), Reason::kUnknownSequence, "export_sequence.request_id");
  v1::OpenSequence stateless = StatefulOpen("plain", 1);
  stateless.clear_parameters();
  stateless.clear_history();
  first_.MustOpen(stateless);
  ExpectError(Export(first_, "plain").error(), Reason::kContradiction, "export_sequence.request_id");
  StreamWorker thief(engine_.get());
  thief.MustOpen(Reopened(open_, 2));
  ExpectError(Export(first_, "a").error(), Reason::kSuperseded, "export_sequence");
}

TEST_F(SessionSnapshot, InvalidSnapshotIsRefusedByName) {
  v1::SequenceSnapshot good;
  ASSERT_TRUE(good.ParseFromString(Export(first_, "a").state()));
  const std::vector<std::tuple<Reason, std::string, std::function<void(v1::SequenceSnapshot*)>>> cases = {
      {Reason::kOutOfRange, "import_sequence.state.format", [](auto* s) { s->set_format(2); }},
      {Reason::kContradiction, "import_sequence.state", [](auto* s) { s->set_history_hash(1); }},
      {Reason::kContradiction, "import_sequence.state", [](auto* s) { s->set_tokens(0, 1000); }},
      {Reason::kContradiction, "import_sequence.state", [](auto* s) { s->clear_in_output(); }},
      {Reason::kTooMany, "import_sequence.state.kept", [](auto* s) { s->set_kept_from(4'294'967'232); }},
      {Reason::kUnknownField, "import_sequence.state.#99",
       [](auto* s) { s->GetReflection()->MutableUnknownFields(s)->AddVarint(99, 1); }},
  };
  for (const auto& [reason, field, change] : cases) {
    v1::SequenceSnapshot bad = good;
    change(&bad);
    ExpectError(Import(second_, ImportOf(bad.SerializeAsString())).error(), reason, field);
  }
  ExpectError(Import(second_, ImportOf("\xff")).error(), Reason::kMalformedMessage, "import_sequence.state");
  std::string flood;  // of fields that no snapshot has, which would take eight times their bytes
  for (uint32_t i = 0; i <= kMaxMessageParts; ++i) flood += "\x98\x06\x01";
  ExpectError(Import(second_, ImportOf(flood)).error(), Reason::kTooMany, "import_sequence.state");
  v1::StreamRequest request = ImportOf(good.SerializeAsString());
  request.mutable_import_sequence()->mutable_open()->clear_seed();
  ExpectError(Import(second_, request).error(), Reason::kMissingField, "import_sequence.open.seed");
  request = ImportOf(good.SerializeAsString());
  request.mutable_import_sequence()->mutable_open()->set_choice_index(1);
  ExpectError(Import(second_, request).error(), Reason::kContradiction, "import_sequence.state");
  request = ImportOf(good.SerializeAsString());
  request.mutable_import_sequence()->mutable_open()->mutable_history()->add_tokens(1);
  ExpectError(Import(second_, request).error(), Reason::kContradiction, "import_sequence.open.history");
  request = ImportOf(good.SerializeAsString());
  request.mutable_import_sequence()->mutable_open()->clear_parameters();
  ExpectError(Import(second_, request).error(), Reason::kContradiction, "import_sequence.open.parameters");
  EXPECT_EQ(other_->sequences().live_sequences(), 0u);
}

TEST_F(SessionSnapshot, BadPieceIsAnsweredOnce) {
  v1::StreamRequest bad = ImportOf("x", true);
  bad.mutable_import_sequence()->mutable_open()->clear_seed();
  ExpectError(Import(second_, bad).error(), Reason::kMissingField, "import_sequence.open.seed");
  second_.Send(ImportOf("y", true));
  second_.Send(ImportOf("z"));
  EXPECT_EQ(second_.sink().size(), 0u);
  EXPECT_TRUE(Import(second_, ImportOf(Export(first_, "a").state())).has_state());
}

TEST_F(SessionSnapshot, PiecesAreBounded) {
  const std::string large(8u << 20, 'x');
  second_.Send(ImportOf(large, true));
  EXPECT_EQ(second_.sink().size(), 0u);
  ExpectError(Import(second_, ImportOf(large + "x")).error(), Reason::kTooMany, "import_sequence.state");
}

TEST_F(SessionSnapshot, EpochsDecideAsForOpen) {
  const std::string state = Export(first_, "a").state();
  StreamWorker late(engine_.get());
  v1::StreamRequest request = ImportOf(state);
  ExpectError(Import(late, request).error(), Reason::kSuperseded, "import_sequence.open.epoch");
  request.mutable_import_sequence()->mutable_open()->set_epoch(2);
  EXPECT_TRUE(Import(late, request).has_state());
}

}  // namespace
}  // namespace sortition::service
