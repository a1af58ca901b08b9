#![no_main]

use checks::arguments::{check, Line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: Line| check(&line));
