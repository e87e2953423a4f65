//! Reads a record's file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
};

use tidewatch_api::names::labels;
use tidewatch_engine::journal::{FORMAT, KcpEvent, Line, Stamped, Start};

/// Longest line, in bytes: an answer of an API server with what JSON makes of it.
const MAX_LINE: u64 = 128 * 1024 * 1024;

/// A record. It is in memory as a whole: about twice the file's size.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Who wrote it, and by which settings.
    pub start: Start,
    /// What happened, in order.
    pub lines: Vec<Stamped>,
    /// How it ends.
    pub end: End,
}

/// How a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With its program.
    Closed,
    /// At its limit in bytes.
    Full(u64),
    /// In the middle: its program was killed, or still writes.
    CutOff,
}

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error("{0:?} cannot be read; check that it exists and its permissions")]
    File(PathBuf, #[source] io::Error),
    /// Something else than a record.
    #[error("{0:?} is no record; `tidewatch-receiver --record FILE` writes one")]
    NoRecord(PathBuf),
    /// From another version.
    #[error(
        "the record is of format {found}, and this program reads format {FORMAT}; use the version that wrote it: {version}"
    )]
    OtherFormat {
        /// Its format.
        found: u64,
        /// The version that wrote it.
        version: String,
    },
    /// A line in the middle.
    #[error("line {line} of the record cannot be read; the file is damaged")]
    Damaged {
        /// Its number, counted from 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A line that no program of ours writes.
    #[error("line {line} of the record is longer than {MAX_LINE} bytes; the file is damaged")]
    TooLong {
        /// Its number, counted from 1.
        line: usize,
    },
}

impl Record {
    /// Reads a file. `progress` hears how many bytes were read, and of how many.
    pub fn read(path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<Self, ReadError> {
        let failed = |error| ReadError::File(path.to_owned(), error);
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let (mut input, mut done, mut number) = (BufReader::with_capacity(1 << 18, file), 0_u64, 0);
        let mut start = None;
        let (mut lines, mut end, mut last) = (Vec::new(), End::CutOff, 0.0_f64);
        loop {
            let mut text = Vec::new();
            let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut text).map_err(failed)? as u64;
            if read == 0 {
                break;
            }
            number += 1;
            done += read;
            progress(done, size);
            if start.is_none() {
                start = Some(first(path, &text)?);
                continue;
            }
            if text.last() != Some(&b'\n') {
                if read == MAX_LINE {
                    return Err(ReadError::TooLong { line: number });
                }
                // Written halfway.
                break;
            }
            let mut line: Stamped = serde_json::from_slice(&text)
                .map_err(|source| ReadError::Damaged { line: number, source })?;
            match line.line {
                Line::Closed => end = End::Closed,
                Line::Full { limit } => end = End::Full(limit),
                _ => {}
            }
            // Two threads that note at once may be a few microseconds apart.
            last = last.max(if line.at.is_finite() { line.at } else { last });
            line.at = last;
            lines.push(line);
        }
        let start = start.ok_or_else(|| ReadError::NoRecord(path.to_owned()))?;
        Ok(Self { start, lines, end })
    }

    /// The Kymas that it tells of, by their runtimes' ids.
    #[must_use]
    pub fn runtimes(&self) -> BTreeMap<String, String> {
        let kymas = self.lines.iter().filter_map(|line| match &line.line {
            Line::Kcp(KcpEvent { kind, name, object: Some(object), .. }) if kind == "Kyma" => {
                Some((name, object))
            }
            _ => None,
        });
        let ids = kymas.filter_map(|(name, object)| {
            let id = object["metadata"]["labels"][labels::RUNTIME_ID].as_str()?;
            Some((id.to_owned(), name.clone()))
        });
        ids.collect()
    }

    /// For how long it goes on, in milliseconds.
    #[must_use]
    pub fn duration(&self) -> f64 {
        self.lines.last().map_or(0.0, |line| line.at)
    }
}

/// The first line says what the rest is.
fn first(path: &Path, text: &[u8]) -> Result<Start, ReadError> {
    let no_record = || ReadError::NoRecord(path.to_owned());
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|_| no_record())?;
    if value["type"] != "start" {
        return Err(no_record());
    }
    let found = value["format"].as_u64().ok_or_else(no_record)?;
    if found != u64::from(FORMAT) {
        let version = value["version"].as_str().unwrap_or("unknown").to_owned();
        return Err(ReadError::OtherFormat { found, version });
    }
    match serde_json::from_value::<Stamped>(value) {
        Ok(Stamped { line: Line::Start(start), .. }) => Ok(*start),
        _ => Err(no_record()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = concat!(
        r#"{"at":0.0,"type":"start","format":2,"program":"p","version":"1.2.3","started":"2026-01-01T00:00:00Z","namespace":"kcp","#,
        r#""modules":"m","workers":1,"per_runtime":1,"deadline":1,"call_deadline":1,"agent_users":[],"restricted_modules":[],"module_cr_state":true,"#,
        r#""min_window":0,"rollout_window":0}"#
    );

    fn read(text: &str) -> Result<Record, ReadError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Record::read(file.path(), |_, _| {})
    }

    #[test]
    fn what_is_there_of_a_record_that_is_cut_off_is_read() {
        let whole = format!(
            "{START}\n{{\"at\":1.5,\"type\":\"turn\",\"work\":1,\"place\":\"a\"}}\n{{\"at\":2.0,\"type\":\"closed\"}}\n"
        );
        let record = read(&whole).unwrap();
        assert_eq!((record.lines.len(), record.end, record.duration().round()), (2, End::Closed, 2.0));
        let cut = read(&whole[..whole.len() - 4]).unwrap();
        assert_eq!((cut.lines.len(), cut.end), (1, End::CutOff));
        let full = format!("{START}\n{{\"at\":1.0,\"type\":\"full\",\"limit\":7}}\n");
        assert_eq!(read(&full).unwrap().end, End::Full(7));
    }

    #[test]
    fn what_is_no_record_is_said_to_be_none() {
        for text in ["", "hello\n", "{}\n", "{\"type\":\"turn\",\"at\":0,\"work\":1}\n"] {
            assert!(matches!(read(text), Err(ReadError::NoRecord(_))), "{text}");
        }
        for other in [1, 3] {
            let start = START.replace("\"format\":2", &format!("\"format\":{other}"));
            let error = read(&format!("{start}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("format {other},")) && error.contains("1.2.3"), "{error}");
        }
        let damaged = read(&format!("{START}\nnonsense\n{{\"at\":1.0,\"type\":\"closed\"}}\n")).unwrap_err();
        assert!(matches!(damaged, ReadError::Damaged { line: 2, .. }));
    }
}
