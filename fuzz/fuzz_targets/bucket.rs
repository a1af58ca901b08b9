#![no_main]

use checks::traffic::{check, Kind, Traffic};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|traffic: Traffic| check(Kind::Bucket, &traffic));
