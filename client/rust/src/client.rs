//! The client of the sampling service.
use crate::error::{c_text, check, check_version, copied_text, made, Error, Result};
use crate::ffi;
use crate::options::{time, ClientOptions, Transport};
use crate::results::Results;
use crate::row::{Batch, Row};
use crate::sequence::{Sequence, SequenceOptions};
use std::ffi::CString;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::slice;
use std::time::Duration;

/// Options of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions<'a> {
    /// Timeout of the whole step, retries included; None: the client's default.
    pub timeout: Option<Duration>,
    /// -100 to 100; higher starts first.
    pub priority: i32,
    /// W3C trace context, for the server's log.
    pub traceparent: &'a str,
}

struct CStep {
    options: ffi::CStepOptions,
    _traceparent: CString,
}

impl StepOptions<'_> {
    fn to_c(self) -> Result<CStep> {
        let traceparent = c_text(self.traceparent, "options.traceparent")?;
        let mut options = ffi::CStepOptions::new();
        options.timeout_ns = time("timeout", self.timeout)?;
        options.priority = self.priority;
        options.traceparent = traceparent.as_ptr();
        Ok(CStep { options, _traceparent: traceparent })
    }
}

/// How the client's rows travel now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportInUse {
    /// [`Transport::Grpc`] or [`Transport::Ring`].
    pub transport: Transport,
    /// True if rows pass through memory shared with the server.
    pub row_memory: bool,
    /// True if rows are sampled in this process; the fields above say nothing then.
    pub in_process: bool,
    /// The reason why no better transport is in use; empty if there is none.
    pub note: String,
}

/// Owns the rows of a step in flight: logits, masks, drafts, and references to sequences.
pub trait StepOwner: Send + 'static {
    /// Returns the rows. They borrow from the owner, which stays where it is until the step is over.
    fn rows(&self) -> Vec<Row<'_>>;
}

/// The client of the sampling service (docs/client.md). It keeps a stream, tries several targets, reconnects, replays
/// histories and repeats steps that got lost. Tokens do not depend on any of this.
///
/// Dropping it ends pending steps with STEP_CANCELLED, and blocks until callbacks have returned.
#[derive(Debug)]
pub struct Client {
    handle: *mut ffi::CClient,
}

// SAFETY: The library's functions for clients are thread-safe.
unsafe impl Send for Client {}
// SAFETY: As above.
unsafe impl Sync for Client {}

impl Client {
    /// Blocks until a target or the fallback has welcomed a stream.
    pub fn connect(options: &ClientOptions) -> Result<Client> {
        check_version()?;
        let c = options.to_c()?;
        // SAFETY: The options and the data that they refer to live until the call is over.
        let handle = made(|client, error| unsafe { ffi::sortition_client_connect(&c.options, client, error) })?;
        Ok(Client { handle })
    }

    /// Makes a sequence known to the service. Blocks for a round trip.
    pub fn open(&self, options: &SequenceOptions<'_>) -> Result<Sequence> {
        let c = options.to_c()?;
        // SAFETY: The handle is open; the options and their texts live until the call is over.
        let handle =
            made(|sequence, error| unsafe { ffi::sortition_client_open(self.handle, &c.options, sequence, error) })?;
        Ok(Sequence::of(handle, options.vocabulary_size))
    }

    /// Steps rows of the client's sequences. Blocks until every row has a result. Each row succeeds or fails alone.
    /// Fails if the batch itself is invalid; then nothing has happened.
    pub fn step(&self, rows: &[Row<'_>], vocabulary_size: u32, options: StepOptions<'_>) -> Result<Results> {
        let batch = Batch::new(rows, vocabulary_size)?;
        let c = options.to_c()?;
        // SAFETY: The handle is open; the batch and all that its rows refer to live until the call is over.
        let results = made(|results, error| unsafe {
            ffi::sortition_client_step(self.handle, &batch.to_c(), &c.options, results, error)
        })?;
        // SAFETY: The library has made the results.
        Ok(unsafe { Results::of(results) })
    }

    /// Does the same without blocking. `done` gets the owner back with the results, on a client's thread, or on a
    /// caller's that is in `step`. It must not block. It is not called if this function returns an error.
    pub fn step_async<Owner, Done>(
        &self,
        owner: Owner,
        vocabulary_size: u32,
        options: StepOptions<'_>,
        done: Done,
    ) -> Result<()>
    where
        Owner: StepOwner,
        Done: FnOnce(Owner, Result<Results>) + Send + 'static,
    {
        let c = options.to_c()?;
        let pending = Box::into_raw(Box::new(Pending { owner, done }));
        // SAFETY: The box stays where it is until the callback takes it back. `rows` is not used after that.
        let started = unsafe {
            let rows = (*pending).owner.rows();
            Batch::new(&rows, vocabulary_size).and_then(|batch| {
                let finish = finish::<Owner, Done>;
                check(|error| {
                    ffi::sortition_client_step_async(
                        self.handle,
                        &batch.to_c(),
                        &c.options,
                        finish,
                        pending.cast(),
                        error,
                    )
                })
            })
        };
        if started.is_err() {
            // SAFETY: There is no callback.
            drop(unsafe { Box::from_raw(pending) });
        }
        started
    }

    /// Allocates memory for logits that need no copy, shared with the server where the stream in use does that. Blocks
    /// for a round trip.
    pub fn allocate(&self, bytes: u64) -> Result<Memory> {
        // SAFETY: The handle is open, and `made` gives valid places.
        let memory =
            made(|memory, error| unsafe { ffi::sortition_client_allocate(self.handle, bytes, memory, error) })?;
        // SAFETY: The library has made the memory, and nothing else refers to it yet.
        unsafe { ptr::write_bytes((*memory).data.cast::<u8>(), 0, (*memory).bytes as usize) };
        Ok(Memory { memory })
    }

    /// Returns how rows travel now.
    pub fn transport(&self) -> Result<TransportInUse> {
        let mut note = vec![0u8; 256];
        loop {
            let mut c = ffi::CTransportInUse::new();
            c.note = note.as_mut_ptr().cast();
            c.note_size = note.len();
            // SAFETY: The handle is open; struct and buffer live until the call is over.
            check(|error| unsafe { ffi::sortition_client_get_transport(self.handle, &mut c, error) })?;
            if c.note_length < note.len() {
                note.truncate(c.note_length);
                return Ok(TransportInUse {
                    transport: if c.transport == Transport::Ring as i32 { Transport::Ring } else { Transport::Grpc },
                    row_memory: c.row_memory != 0,
                    in_process: c.in_process != 0,
                    note: String::from_utf8_lossy(&note).into_owned(),
                });
            }
            note.resize(c.note_length + 1, 0);
        }
    }

    /// Returns the fields that servers have ignored since the client began, each once.
    pub fn ignored_fields(&self) -> Result<Vec<String>> {
        // SAFETY: The handle is open, and the buffer lives until the call is over.
        let lines = copied_text(|place, size, length, error| unsafe {
            ffi::sortition_client_get_ignored_fields(self.handle, place, size, length, error)
        })?;
        Ok(lines.lines().map(str::to_string).collect())
    }

    /// Returns the worker session.
    pub fn worker_session(&self) -> Result<String> {
        // SAFETY: The handle is open, and the buffer lives until the call is over.
        copied_text(|place, size, length, error| unsafe {
            ffi::sortition_client_get_worker_session(self.handle, place, size, length, error)
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: The handle is open, and nothing uses it after this.
        let closed = check(|error| unsafe { ffi::sortition_client_close(self.handle, error) });
        if closed.is_err() {
            // Within a callback, which cannot wait for itself.
            let handle = self.handle as usize;
            // SAFETY: As above; the handle is a number.
            std::thread::spawn(move || unsafe {
                ffi::sortition_client_close(handle as *mut ffi::CClient, ptr::null_mut())
            });
        }
    }
}

/// A step in flight.
struct Pending<Owner, Done> {
    owner: Owner,
    done: Done,
}

/// # Safety `user_data` is step_async's box, which nothing else uses. `results` are the library's, or null.
unsafe extern "C" fn finish<Owner, Done>(user_data: *mut c_void, results: *mut ffi::CResults)
where
    Done: FnOnce(Owner, Result<Results>),
{
    // SAFETY: As the caller promises.
    let (pending, results) = unsafe {
        let results = if results.is_null() { Err(Error::no_memory()) } else { Ok(Results::of(results)) };
        (Box::from_raw(user_data.cast::<Pending<Owner, Done>>()), results)
    };
    // A panic must not unwind into the library. Its message has been printed.
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let Pending { owner, done } = *pending;
        done(owner, results);
    }));
}

/// Memory for logits that need no copy. It stays valid when the stream or the client ends.
#[derive(Debug)]
pub struct Memory {
    memory: *mut ffi::CMemory,
}

// SAFETY: The memory is plain bytes, and changes through `&mut self` alone.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

impl Memory {
    /// True if the memory is shared with the server.
    pub fn is_shared(&self) -> bool {
        // SAFETY: The struct lives as long as this object.
        unsafe { (*self.memory).shared != 0 }
    }

    /// Returns the memory as elements of [`crate::Logits::F32`].
    pub fn as_f32(&self) -> &[f32] {
        // SAFETY: The memory is aligned to a page, has been written, and lives as long as this object.
        unsafe { slice::from_raw_parts((*self.memory).data.cast(), (*self.memory).bytes as usize / 4) }
    }

    /// Returns the same to be written.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: As above.
        unsafe { slice::from_raw_parts_mut((*self.memory).data.cast(), (*self.memory).bytes as usize / 4) }
    }

    /// Returns the memory as elements of [`crate::Logits::F16`] and [`crate::Logits::BF16`].
    pub fn as_u16(&self) -> &[u16] {
        // SAFETY: As above.
        unsafe { slice::from_raw_parts((*self.memory).data.cast(), (*self.memory).bytes as usize / 2) }
    }

    /// Returns the same to be written.
    pub fn as_u16_mut(&mut self) -> &mut [u16] {
        // SAFETY: As above.
        unsafe { slice::from_raw_parts_mut((*self.memory).data.cast(), (*self.memory).bytes as usize / 2) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: The library has made the memory, and no row borrows it any more.
        unsafe { ffi::sortition_memory_free(self.memory) };
    }
}
