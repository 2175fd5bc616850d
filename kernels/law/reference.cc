// The law of whole rows: every id is visited.
#include "kernels/law/reference.h"

#include <utility>
#include <variant>
#include <vector>

#include "kernels/check_row.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::law {

using kernels::RowFault;
using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;
using kernels::TokenBits;

RowOutput SampleRowReference(const RowRequest& request) {
  kernels::CheckRow(request);
  const RowParameters& parameters = *request.parameters;

  std::vector<TokenBits> raw;
  for (u32 id = 0; id < request.live_vocabulary; ++id) {
    const u32 sent = SentBits(request, id);
    const RowFault error = SentError(sent, parameters);
    if (error != RowFault::kNone) return FailedRow(error, id);
    raw.push_back({id, Canonical(sent)});
  }

  std::vector<TokenBits> changed;
  for (const TokenBits& token : raw) {
    const u32 bits = ChangedBits(request, token);
    if (IsTooLarge(bits)) return FailedRow(RowFault::kLogitTooLarge, token.token);
    changed.push_back({token.token, bits});
  }

  ListedRow row;
  row.kept = LiveInOrder(std::move(changed));
  if (row.kept.empty()) return FailedRow(RowFault::kNoLiveToken, 0);
  if (parameters.raw_logprob) row.raw = LiveInOrder(std::move(raw));
  return std::get<RowOutput>(RunListed(request, row));
}

}  // namespace sortition::law
