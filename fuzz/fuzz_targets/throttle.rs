#![no_main]

use checks::throttle::{check, Calls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|calls: Calls| check(&calls));
