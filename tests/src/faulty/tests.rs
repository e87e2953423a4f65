use super::*;

const LONG: Duration = Duration::from_secs(20);
/// Long enough for any undelayed local traffic.
const QUIET: Duration = Duration::from_millis(150);

/// An echo server.
async fn echo() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to) = stream.into_split();
                drop(tokio::io::copy(&mut from, &mut to).await);
            });
        }
    });
    (url, tasks)
}

async fn open(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(&proxy.address).await.unwrap()
}

/// Returns the echo: `Some("")` at the end, `None` for silence.
async fn says(stream: &mut TcpStream, word: &str) -> Option<String> {
    if stream.write_all(word.as_bytes()).await.is_err() {
        return Some(String::new());
    }
    let mut answer = [0; 64];
    match timeout(QUIET, stream.read(&mut answer)).await {
        Ok(length) => Some(String::from_utf8_lossy(&answer[..length.unwrap_or(0)]).into_owned()),
        Err(_) => None,
    }
}

#[tokio::test]
async fn faults_hit_open_connections_and_doors_new_ones() {
    let (url, _server) = echo().await;
    let proxy = Proxy::before(&url).await.unwrap();
    for (blow, then) in [
        (Blow::Drop, Some("")),
        (Blow::HalfOpen, None),
        (Blow::SwallowRequests, None),
        (Blow::SwallowAnswers, None),
    ] {
        let mut old = open(&proxy).await;
        assert_eq!(says(&mut old, "one").await.as_deref(), Some("one"));
        let lost = proxy.lost();
        proxy.strike(blow);
        let mut new = open(&proxy).await;
        assert_eq!(says(&mut new, "new").await.as_deref(), Some("new"), "{blow:?}");
        assert_eq!(says(&mut old, "two").await.as_deref(), then, "{blow:?}");
        let swallows = matches!(blow, Blow::SwallowRequests | Blow::SwallowAnswers);
        assert_eq!(proxy.lost() - lost, if swallows { 3 } else { 0 }, "{blow:?}");
    }
    assert_eq!(proxy.accepted(), 8);
    for (door, then) in [(Door::Refused, Some("")), (Door::Silent, None), (Door::Open, Some("word"))] {
        proxy.set_door(door);
        assert_eq!(says(&mut open(&proxy).await, "word").await.as_deref(), then, "{door:?}");
    }
}

#[tokio::test]
async fn a_delay_does_not_reduce_the_throughput() {
    let (url, _server) = echo().await;
    let proxy = Proxy::before(&url).await.unwrap();
    let delay = Duration::from_millis(200);
    proxy.set_delay(delay);
    let mut stream = open(&proxy).await;
    let begun = Instant::now();
    let whole = vec![b'a'; 20 * PIECE];
    let (mut from, mut to) = stream.split();
    let mut back = vec![0; whole.len()];
    let both = async { tokio::join!(to.write_all(&whole), from.read_exact(&mut back)) };
    let (written, read) = timeout(LONG, both).await.unwrap();
    written.unwrap();
    read.unwrap();
    let took = begun.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    // Sequential delays would take eight seconds.
    assert!(took < 12 * delay, "{took:?}");
}
