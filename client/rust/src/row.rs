//! Rows of a step. Their sizes are checked here, because the library reads the memory of rows of the right size.
use crate::error::{Error, Result};
use crate::ffi;
use crate::sequence::Sequence;
use std::os::raw::c_void;
use std::ptr;

/// Elements of one of the types that rows have.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// IEEE 754 binary32.
    F32(&'a [f32]),
    /// The bits of IEEE 754 binary16.
    F16(&'a [u16]),
    /// The bits of bfloat16: the upper half of a binary32.
    BF16(&'a [u16]),
}

impl Logits<'_> {
    fn len(&self) -> usize {
        match self {
            Logits::F32(values) => values.len(),
            Logits::F16(values) | Logits::BF16(values) => values.len(),
        }
    }

    fn dtype(&self) -> i32 {
        match self {
            Logits::F32(_) => 1,
            Logits::F16(_) => 2,
            Logits::BF16(_) => 3,
        }
    }

    fn as_ptr(&self) -> *const c_void {
        match self {
            Logits::F32(values) => values.as_ptr().cast(),
            Logits::F16(values) | Logits::BF16(values) => values.as_ptr().cast(),
        }
    }
}

/// How drafts are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// While each is the token that would be drawn without speculation.
    Coupled = 0,
    /// While each is the first token in order; for temperature 0.
    Greedy = 1,
    /// With probability min(1, p / q).
    Rejection = 2,
    /// As by rejection, but the drafts are tested together, so that more are accepted. Needs the drafter's
    /// probabilities.
    Block = 3,
}

/// A drafter's probabilities of some tokens; other tokens have 0.
#[derive(Clone, Copy, Debug)]
pub struct SparseProbabilities<'a> {
    /// No token twice.
    pub tokens: &'a [u32],
    /// One for each token.
    pub probabilities: &'a [f32],
}

/// A drafter's probabilities, for [`VerifyMode::Rejection`] and [`VerifyMode::Block`].
#[derive(Clone, Copy, Debug)]
pub enum DraftProbabilities<'a> {
    /// Every draft counts as certain.
    Certain,
    /// A row of the whole vocabulary for each draft, adjacent. In a tree: one for each place that drafts follow, the
    /// root if drafts follow it, then each such draft in order.
    Dense(Logits<'a>),
    /// A list in place of each such row.
    Sparse(&'a [SparseProbabilities<'a>]),
}

/// How the drafts of a tree that follow the same token were drawn from the drafter's distribution, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSampling {
    /// Each from the tokens that were not drawn before it.
    WithoutReplacement = 1,
    /// Each from all tokens: one that was drawn twice is named twice.
    WithReplacement = 2,
}

/// Drafts of the next tokens of a sequence, to be verified together.
#[derive(Clone, Copy, Debug)]
pub struct Drafts<'a> {
    /// The drafts.
    pub tokens: &'a [u32],
    /// Makes a tree: the index of each draft's parent, or -1 for the root.
    pub parents: Option<&'a [i32]>,
    /// How they are accepted.
    pub mode: VerifyMode,
    /// The drafter's.
    pub probabilities: DraftProbabilities<'a>,
    /// True: returns the target's probabilities after every filter.
    pub return_probabilities: bool,
    /// Needed by a tree with probabilities.
    pub sampling: Option<DraftSampling>,
}

/// Returns the number of the drafter's distributions.
fn distributions(drafts: &Drafts<'_>) -> usize {
    match drafts.parents {
        None => drafts.tokens.len(),
        Some(parents) => parents.iter().collect::<std::collections::BTreeSet<_>>().len(),
    }
}

impl<'a> Drafts<'a> {
    /// A sequence of drafts that are accepted while they are the tokens that would be drawn.
    pub fn coupled(tokens: &'a [u32]) -> Drafts<'a> {
        let probabilities = DraftProbabilities::Certain;
        let mode = VerifyMode::Coupled;
        Drafts { tokens, parents: None, mode, probabilities, return_probabilities: false, sampling: None }
    }
}

/// The use of a row's logits.
#[derive(Clone, Copy, Debug)]
pub enum Task<'a> {
    /// Draws one token, from one row of logits.
    Draw,
    /// Verifies drafts, with a row of logits for each and one more.
    Verify(Drafts<'a>),
    /// Scores tokens that follow each other, with a row of logits for each. The sequence stays as it is.
    Score(&'a [u32]),
}

/// The logits of one sequence, and what to do with them.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The sequence, which advances if the row succeeds.
    pub sequence: &'a Sequence,
    /// Adjacent rows of the batch's vocabulary size, one or more as the task needs.
    pub logits: Logits<'a>,
    /// A draw, drafts or scores.
    pub task: Task<'a>,
    /// Tokens that may be drawn: a bit for each, least significant first, in 32-bit words. With drafts a mask for each
    /// row of logits.
    pub allowed: Option<&'a [u32]>,
    /// Tokens that cannot be drawn, even if the mask allows them: with drafts at the first position, for scores at all.
    pub banned: &'a [u32],
    /// Selects another draw at the same position. Has no effect on a draw that a watermark marks. 0 to 65535. The
    /// client adds the number of the sequence's rewinds, modulo 65536. Scores use only the caller's salt.
    pub draw_salt: u32,
}

impl<'a> Row<'a> {
    /// A draw of one token.
    pub fn draw(sequence: &'a Sequence, logits: &'a [f32]) -> Row<'a> {
        Row { sequence, logits: Logits::F32(logits), task: Task::Draw, allowed: None, banned: &[], draw_salt: 0 }
    }
}

fn check_size(row: usize, name: &str, size: usize, right: usize) -> Result<()> {
    if size == right {
        return Ok(());
    }
    let message = format!("{} elements", size);
    Err(Error::refused("SIZE_MISMATCH", format!("rows[{}].{}", row, name), right.to_string(), &message))
}

/// The structs of a batch, which refer to the rows' memory and to each other.
pub(crate) struct Batch {
    rows: Vec<ffi::CRow>,
    // Memory that the rows refer to.
    drafts: Vec<Option<Box<ffi::CDrafts>>>,
    sparse: Vec<Vec<ffi::CSparseProbabilities>>,
    vocabulary_size: u32,
    dtype: i32,
    draft_dtype: i32,
}

impl Batch {
    pub fn new(rows: &[Row<'_>], vocabulary_size: u32) -> Result<Batch> {
        let dtype = rows.first().map_or(1, |row| row.logits.dtype());
        let mut batch = Batch { rows: vec![], drafts: vec![], sparse: vec![], vocabulary_size, dtype, draft_dtype: 0 };
        for (index, row) in rows.iter().enumerate() {
            batch.add(index, row)?;
        }
        Ok(batch)
    }

    /// The result refers to this object.
    pub fn to_c(&self) -> ffi::CBatch {
        let mut batch = ffi::CBatch::new();
        batch.rows = self.rows.as_ptr();
        batch.row_count = self.rows.len();
        batch.vocabulary_size = self.vocabulary_size;
        batch.dtype = self.dtype;
        batch.draft_dtype = self.draft_dtype;
        batch
    }

    /// Returns the elements of a whole row: the batch's vocabulary is less for a client with a shard. A batch with more
    /// does not fit the sequence, and is refused by the library, which may have read rows of its size by then.
    fn whole(&self, row: &Row<'_>) -> usize {
        row.sequence.vocabulary_size().max(self.vocabulary_size) as usize
    }

    fn add(&mut self, index: usize, row: &Row<'_>) -> Result<()> {
        let mut c = ffi::CRow::new();
        let mut drafts = None;
        let (positions, masks) = match &row.task {
            Task::Draw => (1, 1),
            Task::Verify(given) => {
                drafts = Some(self.add_drafts(index, row, given)?);
                (given.tokens.len() + 1, given.tokens.len() + 1)
            }
            Task::Score(tokens) => {
                if tokens.is_empty() {
                    let field = format!("rows[{}].task", index);
                    return Err(Error::refused("MISSING_FIELD", field, "at least 1", "no token to score"));
                }
                c.scored = tokens.as_ptr();
                c.scored_count = tokens.len();
                (tokens.len(), 1)
            }
        };
        if row.logits.dtype() != self.dtype {
            let field = format!("rows[{}].logits", index);
            return Err(Error::refused("CONTRADICTION", field, "", "rows of one step have one type"));
        }
        check_size(index, "logits", row.logits.len(), positions * self.vocabulary_size as usize)?;
        if let Some(words) = row.allowed {
            check_size(index, "allowed", words.len(), masks * ((self.whole(row) + 31) / 32))?;
            c.allowed_bits = words.as_ptr();
        }
        c.banned_tokens = row.banned.as_ptr();
        c.banned_count = row.banned.len();
        c.sequence = row.sequence.handle();
        c.logits = row.logits.as_ptr();
        c.draw_salt = row.draw_salt;
        c.drafts = drafts.as_ref().map_or(ptr::null(), |drafts: &Box<ffi::CDrafts>| &**drafts);
        self.drafts.push(drafts);
        self.rows.push(c);
        Ok(())
    }

    fn add_drafts(&mut self, index: usize, row: &Row<'_>, given: &Drafts<'_>) -> Result<Box<ffi::CDrafts>> {
        let mut drafts = ffi::CDrafts::new();
        let count = given.tokens.len();
        drafts.tokens = given.tokens.as_ptr();
        drafts.count = count;
        drafts.mode = given.mode as i32;
        drafts.return_probabilities = given.return_probabilities.into();
        drafts.sampling = given.sampling.map_or(0, |sampling| sampling as i32);
        if let Some(parents) = given.parents {
            check_size(index, "task.parents", parents.len(), count)?;
            drafts.parents = parents.as_ptr();
        }
        match &given.probabilities {
            DraftProbabilities::Certain => {}
            DraftProbabilities::Dense(values) => {
                if self.draft_dtype != 0 && self.draft_dtype != values.dtype() {
                    let field = format!("rows[{}].task.probabilities", index);
                    return Err(Error::refused("CONTRADICTION", field, "", "rows of one step have one type"));
                }
                check_size(index, "task.probabilities", values.len(), distributions(given) * self.whole(row))?;
                self.draft_dtype = values.dtype();
                drafts.probabilities = values.as_ptr();
            }
            DraftProbabilities::Sparse(lists) => {
                check_size(index, "task.probabilities", lists.len(), distributions(given))?;
                let mut sparse = Vec::with_capacity(lists.len());
                for list in lists.iter() {
                    check_size(index, "task.probabilities", list.probabilities.len(), list.tokens.len())?;
                    let mut c = ffi::CSparseProbabilities::new();
                    c.tokens = list.tokens.as_ptr();
                    c.probabilities = list.probabilities.as_ptr();
                    c.count = list.tokens.len();
                    sparse.push(c);
                }
                drafts.sparse_probabilities = sparse.as_ptr();
                self.sparse.push(sparse); // its elements stay where they are
            }
        }
        Ok(Box::new(drafts))
    }
}
