//! The declarations of the C headers, which tests/rust compares with them.
use std::os::raw::{c_char, c_void};

/// Declares handles. Their pointers lead to no memory.
macro_rules! handles {
    ($($name:ident),*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
handles!(CParameters, CReceipts, CSequence, CClient);

/// Declares structs of the header, with their fields in its order. `new` sets `struct_size`, and all else to 0.
macro_rules! structs {
    ($($name:ident { $($field:ident: $kind:ty),* })*) => { $(
        #[repr(C)]
        pub struct $name { pub struct_size: usize, $(pub $field: $kind),* }
        impl $name {
            #[allow(dead_code)]
            pub fn new() -> Self {
                // SAFETY: All fields are numbers and raw pointers, and 0 is a value of each.
                let zero: Self = unsafe { std::mem::zeroed() };
                Self { struct_size: std::mem::size_of::<Self>(), ..zero }
            }
        }
    )* };
}

structs! {
    CError {
        code: i32, reason: i32, reason_name: *const c_char, field: *const c_char, limit: *const c_char,
        message: *const c_char, retry_after_ns: u64
    }
    CSequenceOptions {
        request_id: *const c_char, parameters: *const CParameters, vocabulary_size: u32, live_vocabulary_size: u32,
        prompt: *const u32, prompt_count: usize, seed: u64, has_seed: u32, choice_index: u32, start_position: u32,
        has_start_position: u32, model: *const c_char, turns: u32, reserved: u32, receipts: *const CReceipts
    }
    CSequenceInfo { seed: u64, vocabulary_size: u32, position: u32, stateful: u32, turns: u32 }
    CSparse { tokens: *const u32, probabilities: *const f32, count: usize }
    CDrafts {
        tokens: *const u32, count: usize, parents: *const i32, mode: i32, return_probabilities: u32,
        probabilities: *const c_void, sparse_probabilities: *const CSparse, sampling: i32
    }
    CRow {
        sequence: *mut CSequence, logits: *const c_void, allowed_bits: *const u32, drafts: *const CDrafts,
        scored: *const u32, scored_count: usize, draw_salt: u32, reserved: u32, banned_tokens: *const u32,
        banned_count: usize
    }
    CBatch {
        rows: *const CRow, row_count: usize, vocabulary_size: u32, dtype: i32, draft_dtype: i32, ready_value: u32,
        ready_word: *const u32
    }
    CLogprobs {
        logprob: f32, rank: u32, top_tokens: *const u32, top_logprobs: *const f32, top_count: usize,
        requested_logprobs: *const f32, requested_ranks: *const u32, requested_count: usize
    }
    CPosition {
        token: u32, entropy: f32, has_entropy: u32, kept_count: u32, has_kept_count: u32, phase: u32,
        raw: *const CLogprobs, processed: *const CLogprobs, kept_tokens: *const u32, kept_token_count: usize,
        probabilities: *const f32, probability_count: usize, tempered: *const CLogprobs, kept_log_mass: f32,
        has_kept_log_mass: u32
    }
    CResult {
        kind: i32, finish_reason: i32, error: *const CError, positions: *const *const CPosition,
        position_count: usize, accepted: u32, matched: u32, position_matched: *const u8,
        position_matched_count: usize, path: *const u32, path_count: usize,
        rewind_tokens: *const u32, rewind_count: usize, rewind_position: u32, reserved: u32
    }
    CResults { rows: *const *const CResult, row_count: usize }
    CClientOptions {
        targets: *const *const c_char, target_count: usize, transport: i32, fallback: i32,
        worker_session: *const c_char, name: *const c_char, token: *const c_char, default_timeout_ns: u64,
        connect_timeout_ns: u64, keepalive_ns: u64, backoff_initial_ns: u64, backoff_max_ns: u64,
        fallback_stay_ns: u64, shared_memory_bytes: u64, ring_spin_ns: u64, message_bytes: u64,
        history_window_tokens: u64, message_rows: u32, history_piece_tokens: u32, in_process_threads: u32,
        memory_server_user: u32, has_memory_server_user: u32, use_tls: u32, tls_root_certificates: *const c_char,
        tls_certificate_chain: *const c_char, tls_private_key: *const c_char, tls_server_name: *const c_char,
        shard_index: u32, shard_count: u32, shard_first_token: u32, shard_tokens: u32, shard_vocabulary_size: u32,
        ignore_unknown_fields: u32, rows: *const c_char
    }
    CStepOptions { timeout_ns: u64, traceparent: *const c_char, priority: i32, reserved: u32 }
    CMemory { data: *mut c_void, bytes: u64, shared: u32, reserved: u32 }
    CTransportInUse {
        transport: i32, row_memory: u32, in_process: u32, reserved: u32, note: *mut c_char, note_size: usize,
        note_length: usize
    }
}

pub type OnError = *mut *mut CError;
pub type StepDone = unsafe extern "C" fn(*mut c_void, *mut CResults);

extern "C" {
    pub fn sortition_version() -> *const c_char;
    pub fn sortition_version_number() -> u32;
    pub fn sortition_law_version() -> u32;
    pub fn sortition_error_free(error: *mut CError);
    pub fn sortition_parameters_new(parameters: *mut *mut CParameters, error: OnError) -> i32;
    pub fn sortition_parameters_copy(from: *const CParameters, copy: *mut *mut CParameters, error: OnError) -> i32;
    pub fn sortition_parameters_close(parameters: *mut CParameters, error: OnError) -> i32;
    pub fn sortition_parameters_set_double(
        parameters: *mut CParameters,
        name: *const c_char,
        value: f64,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_set_uint(
        parameters: *mut CParameters,
        name: *const c_char,
        value: u64,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_set_bool(
        parameters: *mut CParameters,
        name: *const c_char,
        value: i32,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_set_text(
        parameters: *mut CParameters,
        name: *const c_char,
        value: *const c_char,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_set_tokens(
        parameters: *mut CParameters,
        name: *const c_char,
        tokens: *const u32,
        count: usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_set_biases(
        parameters: *mut CParameters,
        name: *const c_char,
        tokens: *const u32,
        biases: *const f32,
        count: usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_add_tokens(
        parameters: *mut CParameters,
        name: *const c_char,
        tokens: *const u32,
        count: usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_add_text(
        parameters: *mut CParameters,
        name: *const c_char,
        value: *const c_char,
        error: OnError,
    ) -> i32;
    pub fn sortition_parameters_clear(parameters: *mut CParameters, name: *const c_char, error: OnError) -> i32;
    pub fn sortition_receipts_new(salt: *const u8, receipts: *mut *mut CReceipts, error: OnError) -> i32;
    pub fn sortition_receipts_take(
        receipts: *mut CReceipts,
        records: *mut u8,
        capacity: usize,
        size: *mut usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_receipts_get_seed_line(
        receipts: *const CReceipts,
        buffer: *mut c_char,
        size: usize,
        length: *mut usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_receipts_await_end(receipts: *const CReceipts, timeout_ns: u64, error: OnError) -> i32;
    pub fn sortition_receipts_close(receipts: *mut CReceipts, error: OnError) -> i32;
    pub fn sortition_local_open(options: *const CSequenceOptions, sequence: *mut *mut CSequence, error: OnError)
        -> i32;
    pub fn sortition_sequence_fork(
        parent: *const CSequence,
        options: *const CSequenceOptions,
        position: *const u32,
        child: *mut *mut CSequence,
        error: OnError,
    ) -> i32;
    pub fn sortition_sequence_clone(sequence: *const CSequence, copy: *mut *mut CSequence, error: OnError) -> i32;
    pub fn sortition_sequence_append(sequence: *mut CSequence, tokens: *const u32, count: usize, error: OnError)
        -> i32;
    pub fn sortition_sequence_truncate(sequence: *mut CSequence, position: u32, error: OnError) -> i32;
    pub fn sortition_sequence_replace_last(sequence: *mut CSequence, token: u32, error: OnError) -> i32;
    pub fn sortition_sequence_get_info(sequence: *const CSequence, info: *mut CSequenceInfo, error: OnError) -> i32;
    pub fn sortition_sequence_get_tokens(
        sequence: *const CSequence,
        tokens: *mut u32,
        capacity: usize,
        count: *mut usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_sequence_close(sequence: *mut CSequence, error: OnError) -> i32;
    pub fn sortition_results_free(results: *mut CResults);
    pub fn sortition_local_step(batch: *const CBatch, results: *mut *mut CResults, error: OnError) -> i32;
    pub fn sortition_client_connect(options: *const CClientOptions, client: *mut *mut CClient, error: OnError) -> i32;
    pub fn sortition_client_close(client: *mut CClient, error: OnError) -> i32;
    pub fn sortition_client_open(
        client: *mut CClient,
        options: *const CSequenceOptions,
        sequence: *mut *mut CSequence,
        error: OnError,
    ) -> i32;
    pub fn sortition_client_step(
        client: *mut CClient,
        batch: *const CBatch,
        options: *const CStepOptions,
        results: *mut *mut CResults,
        error: OnError,
    ) -> i32;
    pub fn sortition_client_step_async(
        client: *mut CClient,
        batch: *const CBatch,
        options: *const CStepOptions,
        done: StepDone,
        user_data: *mut c_void,
        error: OnError,
    ) -> i32;
    pub fn sortition_client_allocate(
        client: *mut CClient,
        bytes: u64,
        memory: *mut *mut CMemory,
        error: OnError,
    ) -> i32;
    pub fn sortition_memory_free(memory: *mut CMemory);
    pub fn sortition_client_get_transport(client: *mut CClient, in_use: *mut CTransportInUse, error: OnError) -> i32;
    pub fn sortition_client_get_ignored_fields(
        client: *mut CClient,
        buffer: *mut c_char,
        size: usize,
        length: *mut usize,
        error: OnError,
    ) -> i32;
    pub fn sortition_client_get_worker_session(
        client: *mut CClient,
        buffer: *mut c_char,
        size: usize,
        length: *mut usize,
        error: OnError,
    ) -> i32;
}
