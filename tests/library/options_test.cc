// libsortition's options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "client/sortition/sampler.h"

namespace sortition::options_test {
namespace {

using kernels::RowParameters;
using ::testing::HasSubstr;

TEST(Library, OptionErrorsNameTheField) {
  RowParameters compiled;
  EXPECT_TRUE(Compile({}, &compiled).ok());
  EXPECT_EQ(compiled, RowParameters());
  const auto refused = [&](auto change) {
    RowOptions options;
    change(&options);
    const Status status = Compile(options, &compiled);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    return status.message;
  };
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.temperature = 0.001f; }), HasSubstr("temperature"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.min_p = 1.5f; }), HasSubstr("min_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_k = 1u << 20; }), HasSubstr("top_k"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.repetition_penalty = 0; }), HasSubstr("repetition_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.presence_penalty = -101; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.frequency_penalty = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("frequency_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->raw_top = 3; }), HasSubstr("raw_top"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.typical_p = 0; }), HasSubstr("typical_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_n_sigma = 0.001f; }), HasSubstr("top_n_sigma"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.eta_cutoff = 2; }), HasSubstr("eta_cutoff"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.xtc_threshold = 0; }), HasSubstr("xtc_threshold"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.smoothing_curve = 4; }), HasSubstr("smoothing_curve"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.mirostat = 3; }), HasSubstr("mirostat"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.mirostat_m = 1; }), HasSubstr("mirostat_m"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.mirostat = 2;
                o->parameters.adaptive_p = true;
              }),
              HasSubstr("exclude each other"));
  using law::Sampler;
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.order = {Sampler::kTopK, Sampler::kTopK};
              }),
              HasSubstr("order: top_k twice"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.top_k = 3;
                o->parameters.order = {Sampler::kTopP};
              }),
              HasSubstr("order lacks top_k"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.top_k = 3;
                o->parameters.mirostat = 2;
                o->parameters.order = {Sampler::kMirostat, Sampler::kTopK};
              }),
              HasSubstr("order: top_k after"));
}

}  // namespace
}  // namespace sortition::options_test
