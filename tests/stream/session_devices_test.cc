// An option that no device of a server can run is refused by name, before anything is lost.
#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "kernels/features.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_devices_test {
namespace {

using ::testing::HasSubstr;

constexpr kernels::Features kLacking =
    kernels::kFeatureTempered | kernels::kFeatureMinKeep | kernels::kFeatureBlock | kernels::kFeatureRounds;

class SessionDevices : public ::testing::Test {
 protected:
  static TestEngine EngineWithout(kernels::Features features) {
    return TestEngine::OnFake({}, {.features = kernels::kAllFeatures & ~features, .synchronous = true});
  }

  TestEngine engine_ = EngineWithout(kLacking);
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionDevices, OptionsThatNoDeviceHasAreRefusedAtOpenByName) {
  const std::pair<std::string, const char*> options[] = {{"tempered_logprobs", "tempered_logprobs {}"},
                                                         {"kept_log_mass", "kept_log_mass: true"},
                                                         {"min_keep", "top_p: 0.5 min_keep: 2"}};
  for (const auto& [name, parameters] : options) {
    v1::OpenSequence open = MakeOpen("a", 1, kStatefulVocabulary);
    *open.mutable_parameters() = ParametersOf(parameters);
    const v1::Error error = worker_.Open(open).error();
    ExpectError(error, Reason::kNotImplemented, "open.parameters." + name);
    EXPECT_THAT(error.message(), HasSubstr(name));
    EXPECT_FALSE(error.has_retry_after());
    v1::StreamRequest message;
    message.mutable_fork()->set_parent_request_id("parent");
    *message.mutable_fork()->mutable_child() = open;
    ExpectError(worker_.Fork(message).error(), Reason::kNotImplemented, "fork.child.parameters." + name);
  }
}

TEST_F(SessionDevices, AnOptionOfAPhaseIsNamedThere) {
  TestEngine engine = EngineWithout(kernels::FeatureOf(kernels::StageKind::kTypicalP));
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kStatefulVocabulary);
  open.mutable_history();
  *open.mutable_parameters() = ParametersOf("phases { end: 5 parameters { typical_p: 0.5 } }");
  ExpectError(worker.Open(open).error(), Reason::kNotImplemented, "open.parameters.phases[0].parameters.typical_p");
}

TEST_F(SessionDevices, RowsWiderThanEveryDeviceTakesAreRefusedAtOpen) {
  TestEngine engine = TestEngine::OnFake({}, {.max_vocabulary = 63, .synchronous = true});
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, 64);
  const v1::Error error = worker.Open(open).error();
  ExpectError(error, Reason::kOutOfRange, "open.vocabulary_size");
  EXPECT_EQ(error.limit(), "<= 63");
  open.set_live_vocabulary_size(63);
  worker.MustOpen(open);
}

// Blocks and rounds are known at the step alone. Its sequence stays as it was.
TEST_F(SessionDevices, TasksThatNoDeviceHasFailTheirStepAlone) {
  const v1::OpenSequence open = StatefulOpen("a", 1);
  worker_.MustOpen(open);
  const PlainSequence plain(open);
  uint64_t batch = 0;
  const auto run = [&](int tensor_rows, const std::function<void(v1::StepRow*)>& set) {
    StepBuilder step(++batch, kStatefulVocabulary);
    set(&AddPeak(&step, "a", 1, plain, 9));
    for (int i = 1; i < tensor_rows; ++i) step.AddTensorRow(F32Peak(kStatefulVocabulary, 9));
    return worker_.Run(step.Build()).at(0);
  };
  const auto sparse = [](v1::SparseProbabilities* drafter) {
    for (const uint32_t token : {9u, 10u}) drafter->add_tokens(token);
    for (int i = 0; i < 2; ++i) drafter->add_probabilities(0.5f);
  };
  const v1::RowResult block = run(2, [&](v1::StepRow* row) {
    v1::VerifyDraft& draft = *row->mutable_verify_draft();
    draft.add_draft_tokens(9);
    draft.set_mode(v1::VERIFY_MODE_BLOCK);
    sparse(draft.add_sparse_probabilities());
  });
  ExpectError(block, Reason::kNotImplemented, "step.rows[0].verify_draft.mode");
  EXPECT_FALSE(block.error().has_retry_after());
  EXPECT_THAT(block.error().message(), HasSubstr("VERIFY_MODE_BLOCK"));
  const v1::RowResult rounds = run(3, [&](v1::StepRow* row) {
    v1::VerifyTree& tree = *row->mutable_verify_tree();
    for (const uint32_t token : {9u, 10u}) {
      tree.add_draft_tokens(token);
      tree.add_parents(-1);
    }
    tree.set_mode(v1::VERIFY_MODE_REJECTION);
    tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT);
    sparse(tree.add_sparse_probabilities());
  });
  ExpectError(rounds, Reason::kNotImplemented, "step.rows[0].verify_tree.draft_sampling");
  EXPECT_EQ(run(1, [](v1::StepRow*) {}).draw().token(), 9u) << "the same step, as a draw";
}

TEST_F(SessionDevices, ScoresAndKeptProbabilitiesAreNamedToo) {
  TestEngine engine = EngineWithout(kernels::kFeatureScore | kernels::kFeatureKeptSet);
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("a", 1, kStatefulVocabulary));
  const auto run = [&](uint64_t batch, int tensor_rows, const std::function<void(v1::StepRow*)>& set) {
    StepBuilder step(batch, kStatefulVocabulary);
    set(&step.AddRow("a", batch, 0, F32Peak(kStatefulVocabulary, 9)));
    for (int i = 1; i < tensor_rows; ++i) step.AddTensorRow(F32Peak(kStatefulVocabulary, 9));
    return worker.Run(step.Build()).at(0);
  };
  ExpectError(run(1, 1, [](v1::StepRow* row) { row->mutable_score()->add_tokens(9); }), Reason::kNotImplemented,
              "step.rows[0].score");
  const v1::RowResult kept = run(2, 2, [](v1::StepRow* row) {
    v1::VerifyDraft& draft = *row->mutable_verify_draft();
    draft.add_draft_tokens(9);
    draft.set_mode(v1::VERIFY_MODE_COUPLED);
    draft.set_return_probabilities(true);
  });
  ExpectError(kept, Reason::kNotImplemented, "step.rows[0].verify_draft.return_probabilities");
}

}  // namespace
}  // namespace sortition::service::session_devices_test
