// What is summed over a chain's kept tokens, ChainOutput::summed: the law's kSum..., and this.
const u32 kSumGroups = 32u;  // the number of groups whose largest key could be a kept token's
