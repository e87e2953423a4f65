//! Every target over its corpus, over mutations of it, and over inputs at the limits that are too large to commit.
//!
//! Deterministic: the same inputs in every run. What a failure prints is enough to make the input again.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

use std::{
    fmt::Write as _,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use tidewatch_fuzz::{TARGETS, Target};
use tidewatch_wire::limits;

/// Mutated inputs for each target.
const MUTATIONS: u64 = 2_000;
/// Of a corpus.
const MAX_FILES: usize = 50;
/// Of a file in a corpus, in bytes.
const MAX_FILE: usize = 4096;

/// What formats are made of, and numbers at the ends of their types.
const TOKENS: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b";",
    b"=",
    b"%",
    b"%00",
    b"\n",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!binary ",
    b"---\n",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"255",
    b"256",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xae",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\0",
    b"[[1,18446744073709551615]]",
    b"Cert=",
    b",Cert=",
    b"\"seq\":",
    b"tidewatch-epoch: ",
    b"tidewatch-session: ",
    b"tidewatch-configuration: ",
    b"\n\n",
    b"00000000-0000-0000-0000-000000000000",
];

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// Names and contents, in the order of the names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

/// Gives one input to a target; a failure names the input.
fn run(name: &str, target: Target, input: &[u8], what: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let shown = String::from_utf8_lossy(&input[..input.len().min(2000)]).into_owned();
        eprintln!("{name}: {what} fails; its {} bytes begin: {shown:?}", input.len());
        std::panic::resume_unwind(panic);
    }
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|(known, _)| *known == name).unwrap().1;
    let corpus = corpus(name);
    assert!(!corpus.is_empty() && corpus.len() <= MAX_FILES, "{} files", corpus.len());
    for (file, input) in &corpus {
        assert!(input.len() <= MAX_FILE, "{file} has {} bytes", input.len());
        run(name, target, input, file);
    }
    for number in 0..MUTATIONS {
        let mut random = Random(number);
        run(name, target, &mutated(&corpus, &mut random), &format!("mutation {number}"));
    }
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 if there is nothing below.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap()
    }

    /// A part of `0..length`, at most `most` long.
    fn part(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..start + self.below(most.min(length - start) + 1)
    }
}

fn mutated(corpus: &[(String, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].1.clone();
    for _ in 0..=random.below(4) {
        match random.below(7) {
            0 if !input.is_empty() => {
                let at = random.below(input.len());
                input[at] ^= 1 << random.below(8);
            }
            1 => drop(input.drain(random.part(input.len(), 32))),
            2 => {
                let copy = input[random.part(input.len(), 64)].to_vec();
                let at = random.below(input.len() + 1);
                input.splice(at..at, copy);
            }
            3 => {
                // Up to 300 times: long strings and deep nesting.
                let token =
                    TOKENS[random.below(TOKENS.len())].repeat(1 + random.below(2) * random.below(300));
                let at = random.below(input.len() + 1);
                input.splice(at..at, token);
            }
            4 => {
                let token = TOKENS[random.below(TOKENS.len())].to_vec();
                let part = random.part(input.len(), 8);
                input.splice(part, token);
            }
            5 => {
                let other = &corpus[random.below(corpus.len())].1;
                let part = random.part(other.len(), 256);
                let at = random.part(input.len(), 64);
                input.splice(at, other[part].to_vec());
            }
            _ => input.truncate(random.below(input.len() + 1)),
        }
    }
    input
}

macro_rules! replayed {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_has_its_test_its_corpus_and_its_program() {
            let names = TARGETS.map(|(name, _)| name);
            assert_eq!(names, [$(stringify!($name)),*]);
            let listed = |path: &str| {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
                let mut names: Vec<String> = fs::read_dir(folder)
                    .unwrap()
                    .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                names
            };
            assert_eq!(listed("corpus"), names);
            assert_eq!(listed("fuzz_targets"), names);
        }
    };
}
replayed!(
    agent_config,
    client_certificate,
    component_descriptor,
    kubeconfig,
    module_template,
    seqset,
    signing_request,
    v2_body,
    v3_request,
    v3_response,
    watch_event,
    watch_set,
    xfcc
);

/// With the multiples of 7 in their middles.
fn ranges_of_three(count: usize) -> String {
    let ranges: Vec<String> = (1..=count).map(|i| format!("[{},{}]", i * 7 - 1, i * 7 + 1)).collect();
    format!("[{}]", ranges.join(","))
}

const EPOCH: &str = "00000000-0000-0000-0000-000000000001";

fn ranges(count: usize, step: usize) -> String {
    let ranges: Vec<String> = (1..=count).map(|i| format!("[{},{}]", i * step, i * step)).collect();
    format!("[{}]", ranges.join(","))
}

fn events(count: usize, step: usize) -> String {
    let events: Vec<String> = (1..=count)
        .map(|i| {
            let seq = i * step;
            format!(
                r#"{{"seq":{seq},"watch":"w","version":"v1","kind":"K","name":"n{i}","change":"gone","observedAt":"2026-01-01T00:00:00Z"}}"#
            )
        })
        .collect();
    format!("[{}]", events.join(","))
}

/// A JSON text made longer by spaces at its end.
fn padded(text: &str, length: usize) -> Vec<u8> {
    let mut padded = text.as_bytes().to_vec();
    padded.resize(length, b' ');
    padded
}

#[test]
fn inputs_at_the_limits_do_not_panic() {
    let mut tried = 0;
    let mut take = |name: &str, input: &[u8]| {
        let target = TARGETS.iter().find(|(known, _)| *known == name).unwrap().1;
        run(name, target, input, "an input at a limit");
        tried += 1;
    };
    for more in [0, 1, 2] {
        let around = |limit: usize| limit - 1 + more;
        let v2 = r#"{"watched":{"Name":"n"},"watchedGvk":{"version":"v1","kind":"K"}}"#;
        take("v2_body", &padded(v2, around(limits::V2_BODY_BYTES)));
        take("seqset", ranges(around(limits::SEQ_RANGES), 3).as_bytes());
        take("seqset", ranges(around(limits::SEQ_RANGES), 1).as_bytes());

        let heartbeat = format!(r#"{{"epoch":"{EPOCH}"}}"#);
        take("v3_request", &padded(&heartbeat, around(limits::V3_BODY_BYTES)));
        for (events, awaiting) in [
            (events(around(limits::V3_EVENTS), 1), "[[1,18446744073709551615]]".to_owned()),
            (events(around(limits::V3_EVENTS), 2), "[[1,18446744073709551615]]".to_owned()),
            (events(10, 7), ranges(around(limits::SEQ_RANGES), 3)),
            (events(limits::V3_EVENTS, 7), ranges_of_three(around(limits::SEQ_RANGES))),
            (events(limits::V3_EVENTS, 7), ranges(around(limits::SEQ_RANGES), 7)),
        ] {
            let request = format!(r#"{{"epoch":"{EPOCH}","events":{events},"awaiting":{awaiting}}}"#);
            take("v3_request", request.as_bytes());
        }
        let set = ranges(around(limits::SEQ_RANGES), 2);
        let response = format!(
            r#"{{"epoch":"{EPOCH}","session":"{EPOCH}","acks":[{{"route":"engine","done":{set}}}],"unknown":{set}}}"#
        );
        take("v3_response", response.as_bytes());

        let header = format!("Cert=\"{}\"", "A".repeat(around(16 * 1024)));
        take("xfcc", header.as_bytes());
        let header = "a=b;".repeat(8 * 1024);
        take("xfcc", &padded(&header, around(32 * 1024)));
        let mut yaml = String::from("a: [");
        for number in 0..around(64 * 1024) {
            write!(yaml, "{number},").unwrap();
        }
        take("kubeconfig", yaml.as_bytes());
        take("kubeconfig", &padded("a: b\n", around(64 * 1024)));
        take("watch_set", &padded("{generation: a, watches: []}\n", around(1024 * 1024)));
        take("watch_set", format!("{{generation: a, watches: [{yaml}").as_bytes());
        take("agent_config", yaml.as_bytes());
    }
    assert_eq!(tried, 3 * 17);
}
