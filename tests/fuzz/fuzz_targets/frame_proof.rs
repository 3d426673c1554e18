#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| throughline_tests::fuzz::run("frame_proof", data));
