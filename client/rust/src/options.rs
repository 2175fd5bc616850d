//! Options of a client. `client/cpp/include/sortition/options.h` describes each at length.
use crate::error::{c_text, Error, Result};
use crate::ffi;
use std::ffi::CString;
use std::os::raw::c_char;
use std::ptr;
use std::time::Duration;

/// The value of a field of the library's struct that turns it off.
const NEVER: u64 = u64::MAX;

/// How messages travel to a target. Tokens do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A ring where the server offers one to this machine, otherwise gRPC.
    Auto = 0,
    /// A gRPC stream, over TCP ("host:port") or a Unix socket ("unix:path").
    Grpc = 1,
    /// Message queues in memory shared with the server; every target is a memory socket.
    Ring = 2,
}

/// Behaviour while no target can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Steps wait until their deadline.
    None = 0,
    /// Rows are sampled in this process, with the same tokens.
    InProcess = 1,
}

/// The form in which rows travel to a server (docs/rows.md). Tokens do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Compact where rows would travel through a socket and are much longer than their compact form.
    Auto,
    /// Whole.
    Full,
    /// Compact, with this many first tokens, for servers that take it.
    Compact(u32),
}

impl Rows {
    fn text(self) -> String {
        match self {
            Rows::Auto => "auto".to_string(),
            Rows::Full => "full".to_string(),
            Rows::Compact(count) => format!("compact({})", count),
        }
    }
}

/// PEM texts, not file names.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// None: the system's roots.
    pub root_certificates: Option<String>,
    /// None: no certificate is shown.
    pub certificate_chain: Option<String>,
    /// The key of the chain's first certificate.
    pub private_key: Option<String>,
    /// Expected in the certificate; None: the target's host.
    pub server_name: Option<String>,
}

/// The part of each row's vocabulary that this process has, as one of several tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number of this rank.
    pub index: u32,
    /// The number of ranks, 2 to 256.
    pub count: u32,
    /// The first token of this shard.
    pub first_token: u32,
    /// Tokens in this shard: elements of a row in this rank's batches.
    pub tokens: u32,
    /// Elements of a whole row.
    pub vocabulary_size: u32,
}

/// Options of a client. None is the library's default.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ClientOptions {
    /// "host:port" or "unix:path", tried in turn. May be empty with [`Fallback::InProcess`].
    pub targets: Vec<String>,
    pub transport: Transport,
    pub fallback: Fallback,
    /// Tells apart workers with the same request ids; None: random.
    pub worker_session: Option<String>,
    /// For the server's log.
    pub name: String,
    /// A bearer token.
    pub token: Option<String>,
    /// None: plain text.
    pub tls: Option<Tls>,
    /// Timeout of a step or an open.
    pub default_timeout: Option<Duration>,
    pub connect_timeout: Option<Duration>,
    pub keepalive: Option<Duration>,
    pub backoff_initial: Option<Duration>,
    pub backoff_max: Option<Duration>,
    /// Zero: does not stay.
    pub fallback_stay: Option<Duration>,
    /// Zero: no memory is shared.
    pub shared_memory_bytes: Option<u64>,
    /// Zero: never polls.
    pub ring_spin: Option<Duration>,
    pub message_bytes: Option<u64>,
    pub message_rows: Option<u32>,
    pub history_piece_tokens: Option<u32>,
    pub history_window_tokens: Option<u64>,
    /// Zero: one for each hardware thread.
    pub in_process_threads: u32,
    /// A user whose servers may share memory with this process.
    pub memory_server_user: Option<u32>,
    /// None: rows are whole.
    pub shard: Option<Shard>,
    /// A server of an earlier release ignores the fields that it does not know, which `Client::ignored_fields` names.
    pub ignore_unknown_fields: bool,
    pub rows: Rows,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            targets: vec![],
            transport: Transport::Auto,
            fallback: Fallback::None,
            worker_session: None,
            name: "sortition-rust".to_string(),
            token: None,
            tls: None,
            default_timeout: None,
            connect_timeout: None,
            keepalive: None,
            backoff_initial: None,
            backoff_max: None,
            fallback_stay: None,
            shared_memory_bytes: None,
            ring_spin: None,
            message_bytes: None,
            message_rows: None,
            history_piece_tokens: None,
            history_window_tokens: None,
            in_process_threads: 0,
            memory_server_user: None,
            shard: None,
            ignore_unknown_fields: false,
            rows: Rows::Auto,
        }
    }
}

/// Returns a number. Refuses 0, which the library would take for its default.
fn number(field: &str, value: Option<u64>) -> Result<u64> {
    match value {
        None => Ok(0),
        Some(0) => Err(Error::refused("OUT_OF_RANGE", format!("options.{}", field), "at least 1", "0")),
        Some(value) => Ok(value),
    }
}

/// Returns a number whose 0 turns the option off.
fn number_or_never(value: Option<u64>) -> u64 {
    value.map_or(0, |value| if value == 0 { NEVER } else { value.min(NEVER - 1) })
}

fn nanoseconds(value: Duration) -> u64 {
    u64::try_from(value.as_nanos()).unwrap_or(NEVER - 1)
}

/// Returns a time. Refuses 0, which the library would take for its default.
pub(crate) fn time(field: &str, value: Option<Duration>) -> Result<u64> {
    number(field, value.map(nanoseconds))
}

/// The library's struct, and the data that it refers to.
pub(crate) struct COptions {
    pub options: ffi::CClientOptions,
    _texts: Vec<CString>,
    _targets: Vec<*const c_char>,
}

impl ClientOptions {
    pub(crate) fn to_c(&self) -> Result<COptions> {
        let mut texts = Vec::new();
        let mut keep = |text: Option<&String>, field: &str| -> Result<*const c_char> {
            let text = match text {
                Some(text) => c_text(text, &format!("options.{}", field))?,
                None => return Ok(ptr::null()),
            };
            texts.push(text);
            Ok(texts[texts.len() - 1].as_ptr()) // a CString's bytes stay where they are
        };
        let mut targets = Vec::new();
        for (index, target) in self.targets.iter().enumerate() {
            targets.push(keep(Some(target), &format!("targets[{}]", index))?);
        }
        let mut c = ffi::CClientOptions::new();
        c.worker_session = keep(self.worker_session.as_ref(), "worker_session")?;
        c.name = keep(Some(&self.name), "name")?;
        c.rows = keep(Some(&self.rows.text()), "rows")?;
        c.token = keep(self.token.as_ref(), "token")?;
        if let Some(tls) = &self.tls {
            c.use_tls = 1;
            c.tls_root_certificates = keep(tls.root_certificates.as_ref(), "tls.root_certificates")?;
            c.tls_certificate_chain = keep(tls.certificate_chain.as_ref(), "tls.certificate_chain")?;
            c.tls_private_key = keep(tls.private_key.as_ref(), "tls.private_key")?;
            c.tls_server_name = keep(tls.server_name.as_ref(), "tls.server_name")?;
        }
        c.targets = targets.as_ptr();
        c.target_count = targets.len();
        c.transport = self.transport as i32;
        c.fallback = self.fallback as i32;
        c.default_timeout_ns = time("default_timeout", self.default_timeout)?;
        c.connect_timeout_ns = time("connect_timeout", self.connect_timeout)?;
        c.keepalive_ns = time("keepalive", self.keepalive)?;
        c.backoff_initial_ns = time("backoff_initial", self.backoff_initial)?;
        c.backoff_max_ns = time("backoff_max", self.backoff_max)?;
        c.fallback_stay_ns = number_or_never(self.fallback_stay.map(nanoseconds));
        c.shared_memory_bytes = number_or_never(self.shared_memory_bytes);
        c.ring_spin_ns = number_or_never(self.ring_spin.map(nanoseconds));
        c.message_bytes = number("message_bytes", self.message_bytes)?;
        c.history_window_tokens = number("history_window_tokens", self.history_window_tokens)?;
        c.message_rows = number("message_rows", self.message_rows.map(u64::from))? as u32;
        c.history_piece_tokens = number("history_piece_tokens", self.history_piece_tokens.map(u64::from))? as u32;
        c.in_process_threads = self.in_process_threads;
        c.memory_server_user = self.memory_server_user.unwrap_or(0);
        c.has_memory_server_user = self.memory_server_user.is_some().into();
        c.ignore_unknown_fields = self.ignore_unknown_fields.into();
        if let Some(shard) = self.shard {
            c.shard_count = number("shard.count", Some(shard.count.into()))? as u32;
            c.shard_index = shard.index;
            c.shard_first_token = shard.first_token;
            c.shard_tokens = shard.tokens;
            c.shard_vocabulary_size = shard.vocabulary_size;
        }
        Ok(COptions { options: c, _texts: texts, _targets: targets })
    }
}
