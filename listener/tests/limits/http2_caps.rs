//! HTTP/2 abuse: too many streams, rapid resets, endless headers.

use tidewatch_listener::Limits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::{Bench, HANG, StatusCode, VALIDITY, bench};

/// RFC 9113.
mod h2 {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const CONTINUATION: u8 = 9;
    pub(super) const END_HEADERS: u8 = 4;
    pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(super) const CANCEL: u32 = 8;
    pub(super) const REFUSED_STREAM: u32 = 7;
    pub(super) const ENHANCE_YOUR_CALM: u32 = 11;
    pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn error(&self) -> u32 {
        let at = if self.kind == h2::GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    fn setting(&self, wanted: u16) -> Option<u32> {
        self.payload.chunks_exact(6).find_map(|setting| {
            let (id, value) = setting.split_at(2);
            (u16::from_be_bytes(id.try_into().unwrap()) == wanted)
                .then(|| u32::from_be_bytes(value.try_into().unwrap()))
        })
    }
}

struct Raw {
    stream: TlsStream<TcpStream>,
    settings: Frame,
}

impl Raw {
    async fn connect(bench: &Bench) -> Self {
        let mut stream = bench.tls_from("127.0.0.1", bench.identity("one", VALIDITY)).await;
        stream.write_all(h2::PREFACE).await.unwrap();
        let settings = Frame { kind: h2::SETTINGS, stream: 0, payload: Vec::new() };
        let mut raw = Self { stream, settings };
        raw.send(h2::SETTINGS, 0, 0, &[]).await.unwrap();
        raw.settings = raw.until(|frame| frame.kind == h2::SETTINGS).await.unwrap();
        raw
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await
    }

    async fn request(&mut self, stream: u32) -> std::io::Result<()> {
        self.send(h2::HEADERS, h2::END_HEADERS, stream, &post()).await
    }

    async fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Option<Frame> {
        let read = async {
            loop {
                let mut head = [0; 9];
                self.stream.read_exact(&mut head).await.ok()?;
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; length as usize];
                self.stream.read_exact(&mut payload).await.ok()?;
                let stream = u32::from_be_bytes(head[5..9].try_into().unwrap()) & 0x7fff_ffff;
                let frame = Frame { kind: head[3], stream, payload };
                if wanted(&frame) {
                    return Some(frame);
                }
            }
        };
        tokio::time::timeout(HANG, read).await.expect("an answer, or the end of the connection")
    }
}

/// `POST https://localhost/v3/events` in HPACK (RFC 7541).
fn post() -> Vec<u8> {
    let mut block = vec![0x83, 0x87, 0x04, 10];
    block.extend(b"/v3/events");
    block.extend([0x01, 9]);
    block.extend(b"localhost");
    block
}

#[tokio::test]
async fn streams_beyond_the_cap_are_refused_others_continue() {
    let bench = bench(Limits::default()).await;
    let mut raw = Raw::connect(&bench).await;
    let cap = raw.settings.setting(h2::MAX_CONCURRENT_STREAMS).expect("a cap that is said");
    assert!(cap <= 8, "{cap}");
    for n in 0..=cap {
        raw.request(2 * n + 1).await.unwrap();
    }
    let refused = raw.until(|frame| frame.kind == h2::RST_STREAM).await.unwrap();
    assert_eq!((refused.stream, refused.error()), (2 * cap + 1, h2::REFUSED_STREAM));
    // Invalid, but answered.
    raw.send(h2::DATA, 1, 1, b"{").await.unwrap();
    let answer = raw.until(|frame| frame.kind == h2::HEADERS).await.unwrap();
    assert_eq!(answer.stream, 1);
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let bench = bench(Limits::default()).await;
    let mut raw = Raw::connect(&bench).await;
    // In one write, to prevent accepts in between. 17 exceeds our limit (16), not the library's (20).
    let mut flood = Vec::new();
    for n in 0..17_u32 {
        let stream = (2 * n + 1).to_be_bytes();
        let block = post();
        flood.extend([0, 0, u8::try_from(block.len()).unwrap(), h2::HEADERS, h2::END_HEADERS]);
        flood.extend(stream);
        flood.extend(block);
        flood.extend([0, 0, 4, h2::RST_STREAM, 0]);
        flood.extend(stream);
        flood.extend(h2::CANCEL.to_be_bytes());
    }
    let _ended_meanwhile = raw.stream.write_all(&flood).await;
    let end = raw.until(|frame| frame.kind == h2::GOAWAY).await;
    let end = end.expect("words of farewell");
    assert_eq!(end.error(), h2::ENHANCE_YOUR_CALM, "{end:?}");
    bench.until("t_connections 0").await;
    assert_eq!(bench.connect("one").await.status().await, StatusCode::OK, "it may come again");
}

#[tokio::test]
async fn headers_beyond_the_cap_are_refused() {
    let bench = bench(Limits::default()).await;
    let mut raw = Raw::connect(&bench).await;
    let cap = raw.settings.setting(h2::MAX_HEADER_LIST_SIZE).expect("a cap that is said");
    assert_eq!(cap, 16 * 1024);
    // 8 KiB, repeated up to 4 MiB.
    let mut piece = vec![0x00, 1, b'x', 0x7f];
    let length = 8 * 1024 - 127;
    piece.extend(
        [0x80 | (length & 0x7f), 0x80 | ((length >> 7) & 0x7f), length >> 14]
            .map(|n: i32| u8::try_from(n).unwrap()),
    );
    piece.extend([b'y'; 8 * 1024]);
    raw.send(h2::HEADERS, 0, 1, &post()).await.unwrap();
    for _ in 0..512 {
        if raw.send(h2::CONTINUATION, 0, 1, &piece).await.is_err() {
            break;
        }
    }
    let end = raw.until(|frame| frame.kind == h2::GOAWAY).await;
    assert!(end.is_none_or(|end| end.error() == h2::ENHANCE_YOUR_CALM));
    bench.until("t_connections 0").await;

    // Finite, but too large.
    let mut raw = Raw::connect(&bench).await;
    raw.send(h2::HEADERS, 0, 1, &post()).await.unwrap();
    raw.send(h2::CONTINUATION, 0, 1, &piece).await.unwrap();
    raw.send(h2::CONTINUATION, h2::END_HEADERS, 1, &piece).await.unwrap();
    let answer = raw.until(|frame| frame.stream == 1).await.unwrap();
    // `:status` (static index 8) and 431, in Huffman codes.
    assert!(
        answer.kind == h2::HEADERS && answer.payload.starts_with(&[0x48, 0x83, 0x69, 0x90, 0xff]),
        "{answer:?}"
    );
    assert_eq!(bench.connect("two").await.status().await, StatusCode::OK);
}
