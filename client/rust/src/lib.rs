//! Token sampling for language-model inference: in this process, or by the sampling service.
//!
//! The crate wraps `sortition.h`, the C interface. Tokens and log probabilities have the same bits in process and at
//! every server. Every type is `Send` and `Sync`. Nothing that the library refuses is dropped in silence: each refusal
//! is an [`Error`] that names the field and the limit.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod client;
mod error;
mod ffi;
mod options;
mod parameters;
mod receipts;
mod results;
mod row;
mod sequence;

pub use client::{Client, Memory, StepOptions, StepOwner, TransportInUse};
pub use error::{Code, Error, Result};
pub use options::{ClientOptions, Fallback, Rows, Shard, Tls, Transport};
pub use parameters::Parameters;
pub use receipts::Receipts;
pub use results::{Kind, Logprobs, Position, Results, RowResult};
pub use row::{DraftProbabilities, DraftSampling, Drafts, Logits, Row, SparseProbabilities, Task, VerifyMode};
pub use sequence::{step, Sequence, SequenceInfo, SequenceOptions};

/// Returns the version of the library that is linked, and its law version.
pub fn version() -> (String, u32) {
    // SAFETY: The text is a constant of the library.
    let text = unsafe { std::ffi::CStr::from_ptr(ffi::sortition_version()) };
    // SAFETY: The function has no preconditions.
    (text.to_string_lossy().into_owned(), unsafe { ffi::sortition_law_version() })
}
