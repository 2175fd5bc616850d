//! Sampling parameters, by the names of the contract's fields.
use crate::error::{c_text, check, made, Error, Result};
use crate::ffi;
use std::os::raw::c_char;

/// The sampling parameters of a sequence: the fields of `SamplingParameters` in proto/sortition/v1/parameters.proto.
///
/// A field of a message has a dot in its name: "mirostat.tau". A field that is not set is off. Ranges are checked when
/// a sequence opens. Setters refuse a name that the contract lacks, and a value of another type.
#[derive(Debug)]
pub struct Parameters {
    handle: *mut ffi::CParameters,
}

// SAFETY: The library's functions are thread-safe, and its setters take `&mut self` here.
unsafe impl Send for Parameters {}
// SAFETY: As above.
unsafe impl Sync for Parameters {}

impl Parameters {
    /// Makes parameters that are all off.
    pub fn new() -> Result<Parameters> {
        // SAFETY: `made` gives valid places.
        let handle = made(|parameters, error| unsafe { ffi::sortition_parameters_new(parameters, error) })?;
        Ok(Parameters { handle })
    }

    /// Copies the parameters.
    pub fn try_clone(&self) -> Result<Parameters> {
        // SAFETY: The handle is open, and `made` gives valid places.
        let handle = made(|copy, error| unsafe { ffi::sortition_parameters_copy(self.handle, copy, error) })?;
        Ok(Parameters { handle })
    }

    pub(crate) fn handle(&self) -> *const ffi::CParameters {
        self.handle
    }

    fn named(
        &mut self,
        name: &str,
        set: impl FnOnce(*mut ffi::CParameters, *const c_char, ffi::OnError) -> i32,
    ) -> Result<&mut Self> {
        let name = c_text(name, "name")?;
        check(|error| set(self.handle, name.as_ptr(), error))?;
        Ok(self)
    }

    /// Sets a number with a fraction, such as "top_p".
    pub fn set_number(&mut self, name: &str, value: f64) -> Result<&mut Self> {
        // SAFETY: The handle is open, and the name lives until the call is over; so in all setters.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_double(handle, name, value, error)
        })
    }

    /// Sets a count, such as "top_k", or "watermark.key".
    pub fn set_count(&mut self, name: &str, value: u64) -> Result<&mut Self> {
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_uint(handle, name, value, error)
        })
    }

    /// Sets a switch, such as "entropy".
    pub fn set_switch(&mut self, name: &str, value: bool) -> Result<&mut Self> {
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_bool(handle, name, value.into(), error)
        })
    }

    /// Sets a field to a name of the contract, such as "chain.preset" to "PRESET_HF".
    pub fn set_text(&mut self, name: &str, value: &str) -> Result<&mut Self> {
        let value = c_text(value, name)?;
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_text(handle, name, value.as_ptr(), error)
        })
    }

    /// Sets a list of tokens, such as "stop_token_ids".
    pub fn set_tokens(&mut self, name: &str, tokens: &[u32]) -> Result<&mut Self> {
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_tokens(handle, name, tokens.as_ptr(), tokens.len(), error)
        })
    }

    /// Sets a value for each of some tokens, such as "logit_bias".
    pub fn set_biases(&mut self, name: &str, tokens: &[u32], biases: &[f32]) -> Result<&mut Self> {
        if tokens.len() != biases.len() {
            let limit = tokens.len().to_string();
            return Err(Error::refused("SIZE_MISMATCH", name, limit, "one bias for each token"));
        }
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_set_biases(handle, name, tokens.as_ptr(), biases.as_ptr(), tokens.len(), error)
        })
    }

    /// Adds a token sequence to a list of them, such as "bad_words".
    pub fn add_tokens(&mut self, name: &str, tokens: &[u32]) -> Result<&mut Self> {
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_add_tokens(handle, name, tokens.as_ptr(), tokens.len(), error)
        })
    }

    /// Adds a name to a list of them, such as "chain.explicit.samplers".
    pub fn add_text(&mut self, name: &str, value: &str) -> Result<&mut Self> {
        let value = c_text(value, name)?;
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe {
            ffi::sortition_parameters_add_text(handle, name, value.as_ptr(), error)
        })
    }

    /// Turns a field off, also one that has fields ("mirostat").
    pub fn clear(&mut self, name: &str) -> Result<&mut Self> {
        // SAFETY: As in set_number.
        self.named(name, |handle, name, error| unsafe { ffi::sortition_parameters_clear(handle, name, error) })
    }
}

impl Drop for Parameters {
    fn drop(&mut self) {
        // SAFETY: The handle is open, and nothing uses it after this.
        unsafe { ffi::sortition_parameters_close(self.handle, std::ptr::null_mut()) };
    }
}
