// Export and import: a sequence's state as a message that another server goes on from.
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

TEST_F(SessionSnapshot, GoesOnElsewhereWithoutTheHistory) {
  const v1::SequenceExported exported = Export(first_, "a");
  ASSERT_FALSE(exported.has_error()) << exported.error().message();
  const v1::SequenceOpened opened = Import(second_, ImportOf(exported.state()));
  ASSERT_TRUE(opened.has_state()) << opened.error().message();
  EXPECT_EQ(opened.state().position(), 5u);
  EXPECT_EQ(opened.state().history_hash(), plain_.hash());
  Draw(second_, 3, 22);
}

TEST_F(SessionSnapshot, InPieces) {
  const std::string state = Export(first_, "a").state();
  second_.Send(ImportOf(state.substr(0, 5), true));
  second_.Send(ImportOf("", true));
  EXPECT_EQ(second_.sink().size(), 0u);
  ASSERT_TRUE(Import(second_, ImportOf(state.substr(5))).has_state());
  Draw(second_, 3, 22);
}

TEST_F(SessionSnapshot, IsOfTheOrderOfWhatIsKept) {
  v1::OpenSequence large = StatefulOpen("large", 1);
  for (int i = 0; i < 100'000; ++i) large.mutable_history()->add_tokens(static_cast<uint32_t>(i % 60));
  first_.MustOpen(large);
  EXPECT_LT(Export(first_, "large").state().size(), 16u << 10);
}

TEST_F(SessionSnapshot, WhatIsNotExportedIsRefusedByName) {
  ExpectError(Export(first_, "nobody").error(), Reason::kUnknownSequence, "export_sequence.request_id");
  v1::OpenSequence stateless = StatefulOpen("plain", 1);
  stateless.clear_parameters();
  first_.MustOpen(stateless);
  ExpectError(Export(first_, "plain").error(), Reason::kContradiction, "export_sequence.request_id");
  StreamWorker thief(engine_.get());
  thief.MustOpen(Reopened(open_, 2));
  ExpectError(Export(first_, "a").error(), Reason::kSuperseded, "export_sequence");
}

TEST_F(SessionSnapshot, WhatIsNoSnapshotOfTheSequenceIsRefusedByName) {
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

TEST_F(SessionSnapshot, ABadPieceIsAnsweredOnce) {
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

TEST_F(SessionSnapshot, EpochsDecideAsForAnyOpen) {
  const std::string state = Export(first_, "a").state();
  StreamWorker late(engine_.get());
  v1::StreamRequest request = ImportOf(state);
  ExpectError(Import(late, request).error(), Reason::kSuperseded, "open.epoch");
  request.mutable_import_sequence()->mutable_open()->set_epoch(2);
  EXPECT_TRUE(Import(late, request).has_state());
}

}  // namespace
}  // namespace sortition::service
