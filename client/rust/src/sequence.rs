//! Sequences, and steps of those in this process.
use crate::error::{c_text, check, check_version, made, Result};
use crate::ffi;
use crate::parameters::Parameters;
use crate::receipts::Receipts;
use crate::results::Results;
use crate::row::{Batch, Row};
use std::ffi::CString;
use std::ptr;

/// The options of a sequence, fixed when it opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceOptions<'a> {
    /// 1 to 128 bytes; unique among the open sequences of a client.
    pub request_id: &'a str,
    /// None: all off.
    pub parameters: Option<&'a Parameters>,
    /// Elements of a row.
    pub vocabulary_size: u32,
    /// Ids at or above are never drawn; 0: all are live.
    pub live_vocabulary_size: u32,
    /// The tokens before the output.
    pub prompt: &'a [u32],
    /// Seed of the noise; None: a random one.
    pub seed: Option<u64>,
    /// The number of this completion, if one prompt has several.
    pub choice_index: u32,
    /// Position of the first token, if no option looks at the history and `prompt` is empty.
    pub start_position: Option<u32>,
    /// Name of the model, for the server's log.
    pub model: &'a str,
    /// With a shard: [`SequenceInfo::turns`] of the other ranks.
    pub turns: u32,
    /// Gets the receipts of the tokens; None: the sequence has none. The log of one sequence. Refused where no service
    /// makes them. With a shard the log is rank 0's.
    pub receipts: Option<&'a Receipts>,
}

/// The library's struct, and the texts that it refers to.
pub(crate) struct COptions {
    pub options: ffi::CSequenceOptions,
    _texts: [CString; 2],
}

impl SequenceOptions<'_> {
    pub(crate) fn to_c(&self) -> Result<COptions> {
        let texts = [c_text(self.request_id, "options.request_id")?, c_text(self.model, "options.model")?];
        let mut options = ffi::CSequenceOptions::new();
        options.request_id = texts[0].as_ptr();
        options.model = texts[1].as_ptr();
        options.parameters = self.parameters.map_or(ptr::null(), Parameters::handle);
        options.vocabulary_size = self.vocabulary_size;
        options.live_vocabulary_size = self.live_vocabulary_size;
        options.prompt = self.prompt.as_ptr();
        options.prompt_count = self.prompt.len();
        options.seed = self.seed.unwrap_or(0);
        options.has_seed = self.seed.is_some().into();
        options.choice_index = self.choice_index;
        options.start_position = self.start_position.unwrap_or(0);
        options.has_start_position = self.start_position.is_some().into();
        options.turns = self.turns;
        options.receipts = self.receipts.map_or(ptr::null(), Receipts::handle);
        Ok(COptions { options, _texts: texts })
    }
}

/// The state of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceInfo {
    /// The seed in use. It is a secret: seed and logits together determine the text.
    pub seed: u64,
    /// Elements of a row.
    pub vocabulary_size: u32,
    /// Tokens of prompt and output so far.
    pub position: u32,
    /// True if an option looks at the history, so that the tokens are kept.
    pub stateful: bool,
    /// Number of times that the text was cut or scored, with a shard.
    pub turns: u32,
}

/// One text, sampled in this process ([`Sequence::open`]) or by a client's server ([`crate::Client::open`]). Closed
/// when it is dropped. It may outlive its client.
#[derive(Debug)]
pub struct Sequence {
    handle: *mut ffi::CSequence,
    vocabulary_size: u32,
}

// SAFETY: The library's functions for sequences are thread-safe.
unsafe impl Send for Sequence {}
// SAFETY: As above.
unsafe impl Sync for Sequence {}

impl Sequence {
    /// Opens a sequence in this process. Options that a server would refuse are refused with the same error.
    pub fn open(options: &SequenceOptions<'_>) -> Result<Sequence> {
        check_version()?;
        let c = options.to_c()?;
        // SAFETY: The options and their texts live until the call is over.
        let handle = made(|sequence, error| unsafe { ffi::sortition_local_open(&c.options, sequence, error) })?;
        Ok(Sequence::of(handle, options.vocabulary_size))
    }

    pub(crate) fn of(handle: *mut ffi::CSequence, vocabulary_size: u32) -> Sequence {
        Sequence { handle, vocabulary_size }
    }

    pub(crate) fn handle(&self) -> *mut ffi::CSequence {
        self.handle
    }

    /// Returns the elements of a row.
    pub fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    /// Opens a sequence that continues the first `position` tokens of this one; None: all. `options` has no prompt.
    /// Blocks for a round trip with a client.
    pub fn fork(&self, options: &SequenceOptions<'_>, position: Option<u32>) -> Result<Sequence> {
        let c = options.to_c()?;
        let at = position.as_ref().map_or(ptr::null(), |position| position as *const u32);
        // SAFETY: The handle is open; the options, their texts and the position live until the call is over.
        let handle =
            made(|child, error| unsafe { ffi::sortition_sequence_fork(self.handle, &c.options, at, child, error) })?;
        Ok(Sequence::of(handle, options.vocabulary_size))
    }

    /// Copies a sequence of this process. The copy continues as this one would: unlike a fork it has the samplers'
    /// states.
    pub fn try_clone(&self) -> Result<Sequence> {
        // SAFETY: The handle is open, and `made` gives valid places.
        let handle = made(|copy, error| unsafe { ffi::sortition_sequence_clone(self.handle, copy, error) })?;
        Ok(Sequence::of(handle, self.vocabulary_size))
    }

    /// Appends tokens, between steps.
    pub fn append(&self, tokens: &[u32]) -> Result<()> {
        // SAFETY: The handle is open, and the tokens live until the call is over.
        check(|error| unsafe { ffi::sortition_sequence_append(self.handle, tokens.as_ptr(), tokens.len(), error) })
    }

    /// Cuts the text to `position` tokens, between steps.
    pub fn truncate(&self, position: u32) -> Result<()> {
        // SAFETY: The handle is open.
        check(|error| unsafe { ffi::sortition_sequence_truncate(self.handle, position, error) })
    }

    /// Replaces the last token, between steps.
    pub fn replace_last(&self, token: u32) -> Result<()> {
        // SAFETY: The handle is open.
        check(|error| unsafe { ffi::sortition_sequence_replace_last(self.handle, token, error) })
    }

    /// Returns where the sequence stands.
    pub fn info(&self) -> Result<SequenceInfo> {
        let mut info = ffi::CSequenceInfo::new();
        // SAFETY: The handle is open, and the struct lives until the call is over.
        check(|error| unsafe { ffi::sortition_sequence_get_info(self.handle, &mut info, error) })?;
        Ok(SequenceInfo {
            seed: info.seed,
            vocabulary_size: info.vocabulary_size,
            position: info.position,
            stateful: info.stateful != 0,
            turns: info.turns,
        })
    }

    /// Returns the tokens of prompt and output; none if the sequence is not stateful.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        let mut tokens: Vec<u32> = Vec::new();
        loop {
            let mut count = 0;
            // SAFETY: The handle is open, and the list has room for `capacity` tokens.
            check(|error| unsafe {
                ffi::sortition_sequence_get_tokens(
                    self.handle,
                    tokens.as_mut_ptr(),
                    tokens.capacity(),
                    &mut count,
                    error,
                )
            })?;
            if count <= tokens.capacity() {
                // SAFETY: The library has written that many.
                unsafe { tokens.set_len(count) };
                return Ok(tokens);
            }
            tokens.reserve_exact(count);
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // SAFETY: The handle is open, and nothing uses it after this. A step in flight keeps the sequence itself.
        unsafe { ffi::sortition_sequence_close(self.handle, ptr::null_mut()) };
    }
}

/// Steps rows of this process's sequences on the calling thread, in turn. Each row succeeds or fails alone. Fails if
/// the batch itself is invalid; then nothing has happened.
pub fn step(rows: &[Row<'_>], vocabulary_size: u32) -> Result<Results> {
    let batch = Batch::new(rows, vocabulary_size)?;
    // SAFETY: The batch and all that its rows refer to live until the call is over.
    let results = made(|results, error| unsafe { ffi::sortition_local_step(&batch.to_c(), results, error) })?;
    // SAFETY: The library has made the results.
    Ok(unsafe { Results::of(results) })
}
