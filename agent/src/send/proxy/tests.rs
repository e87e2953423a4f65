use super::{
    tunnel::{TunnelError, open},
    *,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const DEADLINE: Duration = Duration::from_secs(5);

fn from_environment(variables: &[(&str, &str)], host: &str, port: u16) -> Option<String> {
    let environment =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    choose(None, environment, host, port).unwrap().map(|proxy| proxy.to_string())
}

#[test]
fn proxy_urls_are_validated() {
    let good = [
        ("http://proxy.example:3128", "http://proxy.example:3128", None),
        ("HTTP://proxy.example", "http://proxy.example:80", None),
        ("proxy.example:3128/", "http://proxy.example:3128", None),
        ("http://[fd00::1]:3128", "http://[fd00::1]:3128", None),
        ("http://a:b%40c%3Ad@10.0.0.1:1", "http://10.0.0.1:1", Some("a:b@c:d")),
        ("http://token@10.0.0.1:1", "http://10.0.0.1:1", Some("token:")),
        ("http://@10.0.0.1:1", "http://10.0.0.1:1", None),
    ];
    for (url, shown, credentials) in good {
        let proxy = Proxy::parse(url).unwrap();
        assert_eq!((proxy.to_string().as_str(), proxy.credentials()), (shown, credentials), "{url}");
    }
    let bad = [
        "",
        "http://",
        "http://:80",
        "http://h:port",
        "http://h:+80",
        "http://h:80:80",
        "http://h:99999",
        "http://[::1",
        "http://[x]:1",
        "http://h/path",
        "http://h?q",
        "http://h#f",
        "http://a b:80",
        "http://h\r\nX: y",
        "http://%zz@h:1",
        "http://a:%0d%0aX@h:1",
        "http://a:%ff@h:1",
        "http://a:%4@h:1",
    ];
    for url in bad {
        assert_eq!(Proxy::parse(url), Err(SettingsError::Malformed), "{url:?}");
    }
    for url in ["https://h:1", "socks5://h:1"] {
        assert_eq!(Proxy::parse(url), Err(SettingsError::Scheme), "{url}");
    }
}

#[test]
fn proxy_credentials_are_never_shown() {
    let url = "http://somebody:hunter2@h:1";
    let proxy = Proxy::parse(url).unwrap();
    let broken =
        [Proxy::parse("http://a:hunter2@h:x").unwrap_err(), Proxy::parse("ftp://a:hunter2@h").unwrap_err()];
    let shown = format!(
        "{proxy} {proxy:?} {:?} {broken:?} {} {}",
        Choice::Through(proxy.clone()),
        broken[0],
        broken[1]
    );
    assert!(!shown.contains("hunter2") && !shown.contains("somebody"), "{shown}");
}

#[test]
fn the_environment_is_used_only_without_configuration() {
    let proxy = ("HTTPS_PROXY", "http://upper:1");
    assert_eq!(from_environment(&[], "h", 443), None);
    assert_eq!(from_environment(&[("HTTPS_PROXY", "")], "h", 443), None);
    assert_eq!(from_environment(&[proxy], "h", 443).unwrap(), "http://upper:1");
    assert_eq!(from_environment(&[proxy, ("https_proxy", "lower:2")], "h", 443).unwrap(), "http://lower:2");
    for here in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(from_environment(&[proxy], here, 443), None, "{here}");
    }
    assert_eq!(from_environment(&[proxy, ("NO_PROXY", "h")], "h", 443), None);
    assert_eq!(
        from_environment(&[proxy, ("no_proxy", "x"), ("NO_PROXY", "h")], "h", 443).unwrap(),
        "http://upper:1"
    );

    let environment = |_: &str| Some("*".to_owned());
    let choice: Choice = "http://own:3".to_owned().try_into().unwrap();
    let chosen = choose(Some(&choice), environment, "localhost", 1).unwrap().unwrap();
    assert_eq!(chosen.to_string(), "http://own:3", "the configuration needs no environment");
    let direct: Choice = "direct".to_owned().try_into().unwrap();
    assert_eq!(choose(Some(&direct), |_| Some("http://upper:1".into()), "h", 1), Ok(None));
    assert_eq!(choose(None, |_| Some("ftp://upper:1".into()), "h", 1), Err(SettingsError::Scheme));
}

#[test]
fn bypass_lists_match_hosts_domains_and_networks() {
    let cases: [(&str, &str, u16, bool); 30] = [
        ("*", "anything", 1, true),
        ("example.com", "example.com", 1, true),
        ("example.com", "EXAMPLE.com.", 1, true),
        ("example.com", "a.b.example.com", 1, true),
        ("example.com", "notexample.com", 1, false),
        ("example.com", "example.com.evil", 1, false),
        (".example.com", "a.example.com", 1, true),
        (".example.com", "example.com", 1, false),
        ("*.example.com", "a.example.com", 1, true),
        ("*.example.com", "example.com", 1, false),
        ("example.com:443", "example.com", 443, true),
        ("example.com:443", "example.com", 8443, false),
        ("a, b ,example.com", "example.com", 1, true),
        ("10.0.0.0/8", "10.200.3.4", 1, true),
        ("10.0.0.0/8", "11.0.0.1", 1, false),
        ("10.0.0.0/8", "ten.example", 1, false),
        ("0.0.0.0/0", "192.0.2.1", 1, true),
        ("0.0.0.0/0", "2001:db8::1", 1, false),
        ("192.0.2.1", "192.0.2.1", 1, true),
        ("192.0.2.1/32", "192.0.2.1", 1, true),
        ("192.0.2.1/32", "192.0.2.2", 1, false),
        ("192.0.2.1:443", "192.0.2.1", 443, true),
        ("192.0.2.1:443", "192.0.2.1", 1, false),
        ("192.0.2.1", "::ffff:192.0.2.1", 1, true),
        ("2001:db8::/32", "2001:db8:1::1", 1, true),
        ("2001:db8::/32", "2001:db9::1", 1, false),
        ("::/0", "2001:db9::1", 1, true),
        ("[2001:db8::1]:443", "2001:db8::1", 443, true),
        ("2001:db8::1", "2001:db8::1", 443, true),
        ("10.0.0.0/33,:80,[x],/8,,.,h:port", "10.0.0.1", 80, false),
    ];
    for (list, host, port, expected) in cases {
        assert_eq!(Bypass::parse(list).holds_for(host, port), expected, "{list:?} for {host}:{port}");
    }
}

/// Answers in the given pieces.
fn scripted(pieces: Vec<Vec<u8>>) -> (DuplexStream, tokio::task::JoinHandle<(String, DuplexStream)>) {
    let (client, mut server) = duplex(64 * 1024);
    let proxy = tokio::spawn(async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert_ne!(server.read_buf(&mut request).await.unwrap(), 0);
        }
        for piece in pieces {
            // The client may have closed.
            if server.write_all(&piece).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (String::from_utf8(request).unwrap(), server)
    });
    (client, proxy)
}

async fn outcome(url: &str, host: &str, pieces: &[&[u8]]) -> (Result<(), TunnelError>, String) {
    let (mut client, proxy) = scripted(pieces.iter().map(|piece| piece.to_vec()).collect());
    let proxy_settings = Proxy::parse(url).unwrap();
    let opened = open(&mut client, &proxy_settings, host, 8443, DEADLINE).await;
    let (request, mut server) = proxy.await.unwrap();
    if opened.is_ok() {
        // The tunnel starts here.
        server.write_all(b"tls").await.unwrap();
        let mut through = [0; 3];
        client.read_exact(&mut through).await.unwrap();
        assert_eq!(&through, b"tls");
    }
    (opened, request)
}

#[tokio::test(start_paused = true)]
async fn a_connect_tunnel_is_requested_and_opened() {
    let answer: &[u8] = b"HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\n";
    let (opened, request) = outcome("http://p:1", "receiver.example", &[answer]).await;
    opened.unwrap();
    assert_eq!(request, "CONNECT receiver.example:8443 HTTP/1.1\r\nHost: receiver.example:8443\r\n\r\n");

    let bytes: Vec<&[u8]> = answer.chunks(1).collect();
    let (opened, request) = outcome("http://a:b%21@p:1", "2001:db8::1", &bytes).await;
    opened.unwrap();
    let expected = "CONNECT [2001:db8::1]:8443 HTTP/1.1\r\nHost: [2001:db8::1]:8443\r\n\
                    Proxy-Authorization: Basic YTpiIQ==\r\n\r\n";
    assert_eq!(request, expected);
    outcome("http://p:1", "h", &[b"HTTP/1.0 200 OK\r\n\r\n"]).await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn proxy_failures_have_distinct_labels() {
    let huge = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 60_000]].concat();
    let endless: &[&[u8]] = &[&huge];
    let cases: [(&[&[u8]], &str); 13] = [
        (&[b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno."], "proxy_status"),
        (&[b"HTTP/1.1 502 Bad Gateway\r\n\r\n"], "proxy_status"),
        (&[b"HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic\r\n\r\n"], "proxy_credentials"),
        (&[b"HTTP/1.1 100 Continue\r\n\r\n"], "proxy_status"),
        (&[b"HTTP/1.1 200 OK\r\n\r\n<html>"], "proxy_malformed"),
        (&[b"HTTP/2 200 OK\r\n\r\n"], "proxy_malformed"),
        (&[b"HTTP/1.1 2000 OK\r\n\r\n"], "proxy_malformed"),
        (&[b"HTTP/1.1 +20 OK\r\n\r\n"], "proxy_malformed"),
        (&[b"SSH-2.0-OpenSSH\r\n\r\n"], "proxy_malformed"),
        (&[b"\xff\xfe\0\0\r\n\r\n"], "proxy_malformed"),
        (endless, "proxy_malformed"),
        (&[b"HTTP/1.1 200 OK\r\n"], "proxy_io"),
        (&[], "proxy_io"),
    ];
    for (pieces, expected) in cases {
        let (mut client, proxy) = scripted(pieces.iter().map(|piece| piece.to_vec()).collect());
        // Closes after the last piece.
        let closing = tokio::spawn(async move { drop(proxy.await.unwrap()) });
        let error = open(&mut client, &Proxy::parse("p:1").unwrap(), "h", 1, DEADLINE).await.unwrap_err();
        assert_eq!(error.label(), expected, "{pieces:?}: {error}");
        drop(client);
        closing.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn slow_or_silent_proxies_are_abandoned_at_the_deadline() {
    let drip: Vec<Vec<u8>> = std::iter::repeat_n(b"x".to_vec(), 10_000).collect();
    for pieces in [vec![], drip] {
        let (mut client, _proxy) = scripted(pieces);
        let begun = tokio::time::Instant::now();
        let error = open(&mut client, &Proxy::parse("p:1").unwrap(), "h", 1, DEADLINE).await.unwrap_err();
        assert_eq!((error.label(), begun.elapsed()), ("proxy_timeout", DEADLINE));
    }
}
