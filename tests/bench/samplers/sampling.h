// Samples rows with the options of a case.
#pragma once

#include <cstdint>
#include <span>

#include "client/bench/logits.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/chain.h"
#include "tests/bench/suite.h"

namespace sortition::bench {

class Sampling {
 public:
  Sampling(const Logits& logits, const law::SamplingParameters& options, bool raw_logprob = false) : logits_(logits) {
    law::Compile(options, &parameters_);
    parameters_.raw_logprob = raw_logprob;
    parameters_.raw_top = raw_logprob ? 5 : 0;
  }

  void operator()(size_t row, std::span<const kernels::LogitEdit> edits = {}, const uint32_t* allowed_bits = nullptr) {
    kernels::RowRequest request;
    request.logits = logits_.row(row);
    request.live_vocabulary = logits_.vocabulary();
    request.parameters = &parameters_;
    request.noise = {.seed = 1234, .position = position_++, .stream = 0};
    request.sampler_state = kernels::InitialSamplerState(parameters_.chain);
    request.edits = edits;
    request.allowed_bits = allowed_bits;
    kernels::cpu::SampleRow(request, &scratch_, &answer_);
    asm volatile("" ::"r"(answer_.token));
  }

 private:
  const Logits& logits_;
  kernels::RowParameters parameters_;
  kernels::cpu::Scratch scratch_;
  kernels::RowOutput answer_;
  uint32_t position_ = 0;
};

}  // namespace sortition::bench
