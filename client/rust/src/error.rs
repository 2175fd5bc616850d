//! Errors of calls and of rows.
use crate::ffi;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::c_char;
use std::ptr;
use std::time::Duration;

/// A google.rpc.Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    fn of(number: i32) -> Code {
        use Code::*;
        let codes = [
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ];
        codes.iter().copied().find(|code| *code as i32 == number).unwrap_or(Unknown)
    }
}

/// An error of a call or of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The code of the error.
    pub code: Code,
    /// The name of the contract's reason, such as "OUT_OF_RANGE"; empty without one.
    pub reason: String,
    /// Path of the offending field; empty if there is none.
    pub field: String,
    /// The values that are accepted; empty if there is nothing to say.
    pub limit: String,
    /// The error in words.
    pub message: String,
    /// Advised pause before the next try; zero: no advice.
    pub retry_after: Duration,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reason.is_empty() {
            write!(out, "{:?}", self.code)?;
        } else {
            out.write_str(&self.reason)?;
        }
        if !self.field.is_empty() {
            write!(out, " {}", self.field)?;
        }
        if !self.limit.is_empty() {
            write!(out, " ({})", self.limit)?;
        }
        write!(out, ": {}", self.message)
    }
}

impl std::error::Error for Error {}

impl Error {
    /// An error that this crate finds before the library does.
    pub(crate) fn refused(reason: &str, field: impl Into<String>, limit: impl Into<String>, message: &str) -> Error {
        Error {
            code: if reason == "OUT_OF_RANGE" { Code::OutOfRange } else { Code::InvalidArgument },
            reason: reason.to_string(),
            field: field.into(),
            limit: limit.into(),
            message: message.to_string(),
            retry_after: Duration::ZERO,
        }
    }

    fn of_code(code: i32, message: &str) -> Error {
        Error { code: Code::of(code), ..Error::refused("", "", "", message) }
    }

    /// An error for results that the library had no memory for.
    pub(crate) fn no_memory() -> Error {
        Error::of_code(Code::ResourceExhausted as i32, "no memory")
    }

    /// # Safety
    /// `error` is one of the library's.
    pub(crate) unsafe fn of(error: *const ffi::CError) -> Error {
        // SAFETY: The struct and its texts live as long as the caller's reference to it.
        unsafe {
            let error = &*error;
            Error {
                code: Code::of(error.code),
                reason: text(error.reason_name),
                field: text(error.field),
                limit: text(error.limit),
                message: text(error.message),
                retry_after: Duration::from_nanos(error.retry_after_ns),
            }
        }
    }
}

/// # Safety
/// `at` ends with a 0 byte.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: As the caller promises.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// Runs a function of the library, which gets the place for its error.
pub(crate) fn check(call: impl FnOnce(ffi::OnError) -> i32) -> Result<()> {
    let mut error = ptr::null_mut();
    let code = call(&mut error);
    if code == 0 {
        return Ok(());
    }
    if error.is_null() {
        return Err(Error::of_code(code, "no memory for the error"));
    }
    // SAFETY: The library has made the error, which nothing else refers to.
    unsafe {
        let copy = Error::of(error);
        ffi::sortition_error_free(error);
        Err(copy)
    }
}

/// Runs a function of the library that makes an object.
pub(crate) fn made<T>(call: impl FnOnce(*mut *mut T, ffi::OnError) -> i32) -> Result<*mut T> {
    let mut object = ptr::null_mut();
    check(|error| call(&mut object, error))?;
    Ok(object)
}

/// Returns a text that `get` copies to a buffer, with a 0 byte at its end if that has room for it.
pub(crate) fn copied_text(get: impl Fn(*mut c_char, usize, &mut usize, ffi::OnError) -> i32) -> Result<String> {
    let mut text = vec![0u8; 129];
    loop {
        let mut length = 0;
        let (place, size) = (text.as_mut_ptr().cast(), text.len());
        check(|error| get(place, size, &mut length, error))?;
        if length < size {
            text.truncate(length);
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        text.resize(length + 1, 0);
    }
}

/// Returns an error if the library does not serve the headers that this crate was built with.
pub(crate) fn check_version() -> Result<()> {
    // SAFETY: The function has no preconditions.
    let (library, needed) = (unsafe { ffi::sortition_abi_version() }, ffi::ABI_VERSION);
    if library / 1000 == needed / 1000 && library >= needed {
        return Ok(());
    }
    let message = format!("libsortition_c has ABI version {}, this crate needs {}", library, needed);
    Err(Error::of_code(Code::FailedPrecondition as i32, &message))
}

/// Converts a text for the library, which ends texts with a 0 byte.
pub(crate) fn c_text(value: &str, field: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::refused("OUT_OF_RANGE", field, "no 0 byte", "a text with a 0 byte"))
}
