// Requests of chain.comp to the shaders that sum and search.

// Values of ChainOutput::summed, the sums over a chain's kept tokens: the law's kSum... constants, and this one.
const u32 kSumGroups = 32u;  // the number of groups that may have a kept token

// Values of ChainOutput::search: the tokens that a search looks at, and the number that each of them adds.
const u32 kGroupMaxima = 0u;   // the groups' largest keys as if they were tokens, each adds 1; ids do not matter
const u32 kTokens = 1u;        // kept tokens, each one
const u32 kTokenWeights = 2u;  // kept tokens, each its weight
// In chains.
const u32 kTokenTerms = 3u;  // kept tokens, each its term of the entropy
const u32 kByNearness = 4u;  // kept tokens, each its weight, in the order of their distances' nearness to a mean
