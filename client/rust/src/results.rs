//! Results of a step. They refer to the library's memory, without copies.
use crate::error::{Error, Result};
use crate::ffi;
use std::slice;

/// The results of a batch, in the order of its rows. Freed when it is dropped.
#[derive(Debug)]
pub struct Results {
    results: *mut ffi::CResults,
}

// SAFETY: The library does not change results, and refers to them no more.
unsafe impl Send for Results {}
// SAFETY: As above.
unsafe impl Sync for Results {}

/// # Safety
/// `data` has `count` elements that live as long as 'a, or `count` is 0.
unsafe fn list<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: As the caller promises.
    unsafe { slice::from_raw_parts(data, count) }
}

impl Results {
    /// # Safety
    /// The library has made the results, and nothing else frees them.
    pub(crate) unsafe fn of(results: *mut ffi::CResults) -> Results {
        Results { results }
    }

    fn rows(&self) -> &[*const ffi::CResult] {
        // SAFETY: The list lives as long as the results.
        unsafe { list((*self.results).rows, (*self.results).row_count) }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows().len()
    }

    /// Returns true without rows, which no step has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the result of a row, or the error with which it failed alone. Panics if there is no such row.
    pub fn row(&self, index: usize) -> Result<RowResult<'_>> {
        // SAFETY: The struct and its error live as long as the results.
        let result = unsafe { &*self.rows()[index] };
        if result.error.is_null() {
            Ok(RowResult { result })
        } else {
            // SAFETY: As above.
            Err(unsafe { Error::of(result.error) })
        }
    }

    /// Returns the result of each row.
    pub fn iter(&self) -> impl Iterator<Item = Result<RowResult<'_>>> + '_ {
        (0..self.len()).map(move |index| self.row(index))
    }

    /// Returns the token that a row has drawn, or its error.
    pub fn token(&self, index: usize) -> Result<u32> {
        let row = self.row(index)?;
        row.last_token().ok_or_else(|| Error::refused("", format!("rows[{}]", index), "a draw", "no token"))
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        // SAFETY: The library has made the results, and nothing refers to them any more.
        unsafe { ffi::sortition_results_free(self.results) };
    }
}

/// The kind of a row's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A drawn token.
    Draw,
    /// Accepted drafts and the token after them.
    Verify,
    /// Log probabilities of given tokens.
    Score,
}

/// The result of a row that succeeded.
#[derive(Clone, Copy)]
pub struct RowResult<'a> {
    result: &'a ffi::CResult,
}

// SAFETY: As Results.
unsafe impl Send for RowResult<'_> {}
// SAFETY: As Results.
unsafe impl Sync for RowResult<'_> {}

impl<'a> RowResult<'a> {
    /// Returns the task that the row did.
    pub fn kind(&self) -> Kind {
        match self.result.kind {
            2 => Kind::Verify,
            3 => Kind::Score,
            _ => Kind::Draw,
        }
    }

    /// Returns the drawn token; the accepted drafts and the token after them; or the scored tokens.
    pub fn positions(&self) -> impl ExactSizeIterator<Item = Position<'a>> + 'a {
        // SAFETY: The positions live as long as the results.
        let positions = unsafe { list(self.result.positions, self.result.position_count) };
        // SAFETY: As above.
        positions.iter().map(|position| Position { position: unsafe { &**position } })
    }

    /// Returns the last of the positions' tokens.
    pub fn last_token(&self) -> Option<u32> {
        self.positions().last().map(|position| position.token())
    }

    /// True if one of the tokens is a stop token.
    pub fn is_stopped(&self) -> bool {
        self.result.finish_reason == 1
    }

    /// True if the output ends in a repetition ("repetition_stop"), and not in a stop token.
    pub fn is_repeating(&self) -> bool {
        self.result.finish_reason == 2
    }

    /// Returns the banned phrase ("banned_phrases") that the text has ended in, and its position. The sequence has been
    /// cut there, and its next draw there begins with another token.
    pub fn rewind(&self) -> Option<(u32, &'a [u32])> {
        // SAFETY: The list lives as long as the results.
        let tokens = unsafe { list(self.result.rewind_tokens, self.result.rewind_count) };
        (!tokens.is_empty()).then_some((self.result.rewind_position, tokens))
    }

    /// Returns the number of accepted drafts, to commit by.
    pub fn accepted(&self) -> u32 {
        self.result.accepted
    }

    /// Telemetry: returns 1 or 0 for each draft, 1 if it passed at its own position.
    pub fn position_matched(&self) -> &'a [u8] {
        // SAFETY: The list lives as long as the results.
        unsafe { list(self.result.position_matched, self.result.position_matched_count) }
    }

    /// Returns the accepted drafts of a tree, by index.
    pub fn path(&self) -> &'a [u32] {
        // SAFETY: The list lives as long as the results.
        unsafe { list(self.result.path, self.result.path_count) }
    }
}

/// One token of a result.
#[derive(Clone, Copy)]
pub struct Position<'a> {
    position: &'a ffi::CPosition,
}

// SAFETY: As Results.
unsafe impl Send for Position<'_> {}
// SAFETY: As Results.
unsafe impl Sync for Position<'_> {}

impl<'a> Position<'a> {
    /// Returns the token.
    pub fn token(&self) -> u32 {
        self.position.token
    }

    /// Returns the phase in which the token was drawn: 1 is the first of "phases"; 0 is outside of all.
    pub fn phase(&self) -> u32 {
        self.position.phase
    }

    /// Returns the log probabilities of the row as it came, with "raw_logprobs".
    pub fn raw(&self) -> Option<Logprobs<'a>> {
        // SAFETY: The struct lives as long as the results.
        unsafe { self.position.raw.as_ref() }.map(Logprobs::of)
    }

    /// Returns the log probabilities of the tokens that passed every filter, with "processed_logprobs".
    pub fn processed(&self) -> Option<Logprobs<'a>> {
        // SAFETY: The struct lives as long as the results.
        unsafe { self.position.processed.as_ref() }.map(Logprobs::of)
    }

    /// Returns the log probabilities after the temperature and before the filters, with "tempered_logprobs".
    pub fn tempered(&self) -> Option<Logprobs<'a>> {
        // SAFETY: The struct lives as long as the results.
        unsafe { self.position.tempered.as_ref() }.map(Logprobs::of)
    }

    /// Returns the logarithm of the kept tokens' mass in the tempered distribution, with "kept_log_mass".
    pub fn kept_log_mass(&self) -> Option<f32> {
        Some(self.position.kept_log_mass).filter(|_| self.position.has_kept_log_mass != 0)
    }

    /// Returns the entropy in nats, with "entropy".
    pub fn entropy(&self) -> Option<f32> {
        Some(self.position.entropy).filter(|_| self.position.has_entropy != 0)
    }

    /// Returns the number of tokens that passed every filter, with "kept_set.count".
    pub fn kept_count(&self) -> Option<u32> {
        Some(self.position.kept_count).filter(|_| self.position.has_kept_count != 0)
    }

    /// Returns the ids of these tokens, ascending, with "kept_set.tokens".
    pub fn kept_tokens(&self) -> &'a [u32] {
        // SAFETY: The list lives as long as the results.
        unsafe { list(self.position.kept_tokens, self.position.kept_token_count) }
    }

    /// Returns the probability of each live token, with [`crate::Drafts::return_probabilities`].
    pub fn probabilities(&self) -> &'a [f32] {
        // SAFETY: The list lives as long as the results.
        unsafe { list(self.position.probabilities, self.position.probability_count) }
    }
}

/// Log probabilities of one distribution, natural logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs<'a> {
    /// That of the position's token; -inf if it is not in the distribution.
    pub logprob: f32,
    /// That of the position's token, 1 = first in order; 0 if it is not in the distribution.
    pub rank: u32,
    /// The requested alternatives, first in order.
    pub top_tokens: &'a [u32],
    /// The log probability of each of them.
    pub top_logprobs: &'a [f32],
    /// The log probability of each of "logprob_token_ids".
    pub requested_logprobs: &'a [f32],
    /// The rank of each of them.
    pub requested_ranks: &'a [u32],
}

impl<'a> Logprobs<'a> {
    fn of(c: &'a ffi::CLogprobs) -> Logprobs<'a> {
        // SAFETY: The lists live as long as the results.
        unsafe {
            Logprobs {
                logprob: c.logprob,
                rank: c.rank,
                top_tokens: list(c.top_tokens, c.top_count),
                top_logprobs: list(c.top_logprobs, c.top_count),
                requested_logprobs: list(c.requested_logprobs, c.requested_count),
                requested_ranks: list(c.requested_ranks, c.requested_count),
            }
        }
    }
}
