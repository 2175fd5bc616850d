// What is summed over a chain's kept tokens beside their number: ChainOutput::summed. The first of two sums, and the
// second.
const u32 kNothing = 0u;  // not even the number
const u32 kGroups = 1u;   // the number of groups whose largest key could be a kept token's
const u32 kCounts = 2u;
const u32 kWeights = 3u;
const u32 kMoments = 4u;       // weights; moments
const u32 kSquares = 5u;       // weights; their squares
const u32 kEntropyTerms = 6u;  // nothing; terms of the entropy
const u32 kLevels = 7u;        // levels; their squares
const u32 kFallOff = 8u;       // by falloff.comp: how the kept tokens fall off; squares of the steps of their ranks
