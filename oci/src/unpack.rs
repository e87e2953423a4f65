//! Unpacks archives in memory, within limits.

use std::{
    io::Read,
    path::{Component, Path},
};

use flate2::read::GzDecoder;
use tar::{Archive, EntryType};

#[derive(Debug, Clone, Copy)]
pub(super) struct Caps {
    /// Unpacked, with headers.
    pub(super) bytes: u64,
    pub(super) entries: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    /// Relative; empty without an archive.
    pub(super) path: String,
    pub(super) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("it unpacks to more than {0} bytes")]
    TooLarge(u64),
    #[error("it has more than {0} entries")]
    TooManyEntries(usize),
    #[error("entry {0} is a link or special file")]
    Special(usize),
    #[error("entry {0} has an absolute path, a '..' or an unreadable name")]
    Path(usize),
    #[error("entry {0} is no text in UTF-8, nor in UTF-16 with a byte order mark")]
    NoText(usize),
    #[error("the archive is damaged")]
    Damaged,
}

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const TAR_MAGIC_AT: usize = 257;
const TAR_MAGIC: &[u8] = b"ustar";

/// Reads a tar or text, maybe gzipped. Content decides, since tools set `media_type` loosely; it only identifies tars
/// without a magic.
pub(super) fn files(bytes: &[u8], media_type: &str, caps: Caps) -> Result<Vec<File>, UnpackError> {
    let unpacked;
    let bytes = if bytes.starts_with(GZIP_MAGIC) {
        unpacked = gunzip(bytes, caps.bytes)?;
        unpacked.as_slice()
    } else {
        bytes
    };
    if bytes.len() as u64 > caps.bytes {
        return Err(UnpackError::TooLarge(caps.bytes));
    }
    let magic = bytes.get(TAR_MAGIC_AT..TAR_MAGIC_AT + TAR_MAGIC.len()) == Some(TAR_MAGIC);
    if magic || media_type.contains("tar") {
        untar(bytes, caps)
    } else {
        Ok(vec![File { path: String::new(), text: text(bytes, 0)? }])
    }
}

fn gunzip(bytes: &[u8], limit: u64) -> Result<Vec<u8>, UnpackError> {
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes).take(limit + 1).read_to_end(&mut unpacked).map_err(|_| UnpackError::Damaged)?;
    if unpacked.len() as u64 > limit { Err(UnpackError::TooLarge(limit)) } else { Ok(unpacked) }
}

fn untar(bytes: &[u8], caps: Caps) -> Result<Vec<File>, UnpackError> {
    let mut files = Vec::new();
    let mut archive = Archive::new(bytes);
    for (index, entry) in archive.entries().map_err(|_| UnpackError::Damaged)?.enumerate() {
        if index >= caps.entries {
            return Err(UnpackError::TooManyEntries(caps.entries));
        }
        let mut entry = entry.map_err(|_| UnpackError::Damaged)?;
        match entry.header().entry_type() {
            EntryType::Regular => {}
            // Comments of `git archive`, without a file.
            EntryType::XGlobalHeader => continue,
            EntryType::Directory => {
                safe_path(&entry.path_bytes(), index)?;
                continue;
            }
            _ => return Err(UnpackError::Special(index)),
        }
        let path = safe_path(&entry.path_bytes(), index)?;
        // The archive is within the limit.
        let mut content = Vec::new();
        let size = entry.size();
        entry.by_ref().take(caps.bytes).read_to_end(&mut content).map_err(|_| UnpackError::Damaged)?;
        if content.len() as u64 != size {
            return Err(UnpackError::Damaged);
        }
        files.push(File { path, text: text(&content, index)? });
    }
    Ok(files)
}

fn safe_path(bytes: &[u8], index: usize) -> Result<String, UnpackError> {
    let path = std::str::from_utf8(bytes).map_err(|_| UnpackError::Path(index))?;
    let relative =
        Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if relative && !path.contains('\\') && !path.contains('\0') {
        Ok(path.to_owned())
    } else {
        Err(UnpackError::Path(index))
    }
}

fn text(bytes: &[u8], index: usize) -> Result<String, UnpackError> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (units, rest) = bytes.as_chunks();
        let text = String::from_utf16(&units.iter().map(|bytes| unit(*bytes)).collect::<Vec<_>>()).ok();
        text.filter(|_| rest.is_empty())
    };
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        bytes => str::from_utf8(bytes).ok().map(str::to_owned),
    };
    text.ok_or(UnpackError::NoText(index))
}

/// Fixed owner, mode and time, so that equal content has equal bytes.
pub(super) fn tar_of(files: &[(&str, &str)]) -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(text.len() as u64);
        builder.append_data(&mut header, path, text.as_bytes())?;
    }
    builder.into_inner()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const CAPS: Caps = Caps { bytes: 16 * 1024, entries: 4 };

    fn header(kind: EntryType, path: &[u8], size: u64) -> tar::Header {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        header
    }

    fn tar_with(kind: EntryType, path: &[u8], content: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&header(kind, path, content.len() as u64), content).unwrap();
        builder.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_gzip_and_tar_yield_the_same_files() {
        let tar = tar_of(&[("a.yaml", "a: 1"), ("sub/b.yaml", "b: 2")]).unwrap();
        assert_eq!(tar, tar_of(&[("a.yaml", "a: 1"), ("sub/b.yaml", "b: 2")]).unwrap());
        let plain = files(&tar, "application/octet-stream", CAPS).unwrap();
        assert_eq!(plain.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["a.yaml", "sub/b.yaml"]);
        assert_eq!(files(&gzip(&tar), "application/x-tar", CAPS).unwrap(), plain);
        let text = vec![File { path: String::new(), text: "a: 1".to_owned() }];
        assert_eq!(files(b"a: 1", "application/octet-stream", CAPS).unwrap(), text);
        assert_eq!(files(&gzip(b"a: 1"), "", CAPS).unwrap(), text);
    }

    #[test]
    fn refuses_special_files_unsafe_paths_and_binary_content() {
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo] {
            assert_eq!(
                files(&tar_with(kind, b"a.yaml", b""), "", CAPS).unwrap_err(),
                UnpackError::Special(0),
                "{kind:?}"
            );
        }
        for path in [&b"/etc/a.yaml"[..], b"../a.yaml", b"a/../b.yaml", b"a\xff.yaml", b"..\\a.yaml"] {
            assert_eq!(
                files(&tar_with(EntryType::Regular, path, b"x"), "", CAPS).unwrap_err(),
                UnpackError::Path(0)
            );
        }
        for content in [&b"\xff"[..], b"a\xff\xfe", b"\xff\xfea", b"\xff\xfe\x00\xd8", b"a\0\xe9\0"] {
            let refused = files(&tar_with(EntryType::Regular, b"a", content), "", CAPS);
            assert_eq!(refused.unwrap_err(), UnpackError::NoText(0), "{content:?}");
        }
    }

    #[test]
    fn utf_16_is_read_by_its_byte_order_mark() {
        let text = "a: é 🌊\n";
        let wide = |mark: [u8; 2], bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            mark.into_iter().chain(text.encode_utf16().flat_map(bytes)).collect()
        };
        for content in [wide([0xff, 0xfe], u16::to_le_bytes), wide([0xfe, 0xff], u16::to_be_bytes)] {
            assert_eq!(files(&content, "", CAPS).unwrap()[0].text, text);
            assert_eq!(files(&tar_with(EntryType::Regular, b"a", &content), "", CAPS).unwrap()[0].text, text);
        }
    }

    #[test]
    fn unpacked_size_and_entry_count_are_limited() {
        let many: Vec<(&str, &str)> = vec![("a.yaml", ""); 5];
        assert_eq!(files(&tar_of(&many).unwrap(), "", CAPS).unwrap_err(), UnpackError::TooManyEntries(4));
        let bomb = gzip(&vec![b'a'; 1024 * 1024]);
        assert!((bomb.len() as u64) < CAPS.bytes);
        assert_eq!(files(&bomb, "", CAPS).unwrap_err(), UnpackError::TooLarge(CAPS.bytes));
        let wide = vec![b'a'; 17 * 1024];
        assert_eq!(files(&wide, "", CAPS).unwrap_err(), UnpackError::TooLarge(CAPS.bytes));
    }

    #[test]
    fn damaged_archives_are_errors() {
        let tar = tar_of(&[("a.yaml", &"x".repeat(2000))]).unwrap();
        assert_eq!(files(&tar[..1024], "", CAPS).unwrap_err(), UnpackError::Damaged);
        let gz = gzip(&tar);
        assert_eq!(files(&gz[..gz.len() / 2], "", CAPS).unwrap_err(), UnpackError::Damaged);
        assert_eq!(files(&[b'x'; 600], "application/x-tar", CAPS).unwrap_err(), UnpackError::Damaged);
    }
}
