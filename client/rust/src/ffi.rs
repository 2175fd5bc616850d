//! The declarations of the C headers, which build.rs writes in Rust.
use std::os::raw::{c_char, c_void};

/// Declares a handle. Its pointers lead to no memory.
macro_rules! handle {
    ($name:ident) => {
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    };
}

/// Declares a struct of the header, with its fields in its order. `new` sets `struct_size`, and all else to 0.
macro_rules! structure {
    ($name:ident { $($field:ident: $kind:ty,)* }) => {
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
    };
}

pub type OnError = *mut *mut CError;
pub type CStepDone = unsafe extern "C" fn(*mut c_void, *mut CResults);

include!(concat!(env!("OUT_DIR"), "/declarations.rs"));
