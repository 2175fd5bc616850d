//! Shared by the tests of the crate: logits, and options that look at the history.
use sortition::{Parameters, Result, SequenceOptions};

/// Elements of a row.
pub const VOCABULARY: u32 = 1000;

/// Returns the logits of fill_logits in tests/c/testing.h.
pub fn logits_of(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(1);
    let next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        ((state >> 24) as i32 - 128) as f32 / 16.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Returns parameters with a filter, penalties and log probabilities.
pub fn parameters() -> Result<Parameters> {
    let mut parameters = Parameters::new()?;
    parameters.set_number("temperature", 0.9)?.set_count("top_k", 50)?;
    parameters.set_number("repetition_penalty", 1.2)?.set_count("processed_logprobs.top", 3)?;
    Ok(parameters)
}

/// Returns the options of tests/c/testing.h.
pub fn options<'a>(request_id: &'a str, parameters: Option<&'a Parameters>) -> SequenceOptions<'a> {
    SequenceOptions {
        request_id,
        parameters,
        vocabulary_size: VOCABULARY,
        prompt: &[1, 2, 3, 2],
        seed: Some(42),
        ..SequenceOptions::default()
    }
}
