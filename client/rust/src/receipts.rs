//! Receipts of a sequence.
use crate::error::{check, check_version, copied_text, made, Code, Result};
use crate::ffi;
use std::ptr;
use std::time::Duration;

/// The log of a sequence's receipts: the service's records of how each token was drawn (docs/receipts.md). It grows
/// with each token until [`Receipts::take`] is called. Closed when it is dropped, before its sequence or after it.
#[derive(Debug)]
pub struct Receipts {
    handle: *mut ffi::CReceipts,
}

// SAFETY: The library's functions for receipts are thread-safe.
unsafe impl Send for Receipts {}
// SAFETY: As above.
unsafe impl Sync for Receipts {}

impl Receipts {
    /// Makes a log for one sequence. `salt` hides the seed in the receipts; None: the service draws one.
    pub fn new(salt: Option<&[u8; 16]>) -> Result<Receipts> {
        check_version()?;
        let salt = salt.map_or(ptr::null(), |bytes| bytes.as_ptr());
        // SAFETY: The salt is null or has 16 bytes, and `made` gives valid places.
        let handle = made(|receipts, error| unsafe { ffi::sortition_receipts_new(salt, receipts, error) })?;
        Ok(Receipts { handle })
    }

    pub(crate) fn handle(&self) -> *const ffi::CReceipts {
        self.handle
    }

    /// Returns the records that have come since the last call. All of them in their order are a file of receipts.
    pub fn take(&self) -> Result<Vec<u8>> {
        let mut records: Vec<u8> = Vec::new();
        loop {
            let mut size = 0;
            // SAFETY: The handle is open, and the list has room for `capacity` bytes.
            check(|error| unsafe {
                ffi::sortition_receipts_take(self.handle, records.as_mut_ptr(), records.capacity(), &mut size, error)
            })?;
            if size <= records.capacity() {
                // SAFETY: The library has written that many.
                unsafe { records.set_len(size) };
                return Ok(records);
            }
            records.reserve_exact(size);
        }
    }

    /// Returns the line that opens the commitment to the seed, "SEED SALT". It is a secret until it is published, and
    /// empty until the sequence is open.
    pub fn seed_line(&self) -> Result<String> {
        // SAFETY: The handle is open, and the buffer lives until the call is over.
        copied_text(|place, size, length, error| unsafe {
            ffi::sortition_receipts_get_seed_line(self.handle, place, size, length, error)
        })
    }

    /// Blocks until the last signature has come, which the service sends after the sequence is dropped, at most this
    /// long. Returns false if it has not come: then the last receipts are not signed.
    pub fn await_end(&self, most: Duration) -> Result<bool> {
        let timeout = most.as_nanos().min(u64::MAX.into()) as u64;
        // SAFETY: The handle is open.
        match check(|error| unsafe { ffi::sortition_receipts_await_end(self.handle, timeout, error) }) {
            Ok(()) => Ok(true),
            Err(error) if error.code == Code::DeadlineExceeded => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Receipts {
    fn drop(&mut self) {
        // SAFETY: The handle is open, and nothing uses it after this. The sequence keeps the log itself.
        unsafe { ffi::sortition_receipts_close(self.handle, ptr::null_mut()) };
    }
}
