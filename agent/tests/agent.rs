//! Exit codes, and a start without peers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

use jiff::{SignedDuration, Timestamp};
use std::{net::SocketAddr, path::Path, process::Command, time::Duration};
use tempfile::TempDir;
use tidewatch_agent::{app, config::Config};
use tidewatch_certs::{Ca, ClientRequest};
use tidewatch_drain::{Drain, Outcome};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The discard port.
const UNREACHABLE: &str = "127.0.0.1:9";

fn config(dir: &Path) -> String {
    let file = |name: &str| dir.join(name).display().to_string();
    format!(
        "runtimeId: runtime-1
receiver: {{url: 'https://{UNREACHABLE}', caFile: '{}', certFile: '{}', keyFile: '{}'}}
adminAddress: 127.0.0.1:0
kubeconfig: '{}'
watches:
  - {{name: pods, version: v1, resource: pods, field: spec}}
",
        file("ca"),
        file("cert"),
        file("key"),
        file("kubeconfig"),
    )
}

fn files() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let validity = SignedDuration::from_hours(1);
    let ca = Ca::create("test", validity, Timestamp::now()).unwrap();
    let request =
        ClientRequest { runtime_id: "runtime-1".into(), dns_names: vec![], organizations: vec![], validity };
    let own = ca.issue_client(&request, Timestamp::now()).unwrap();
    std::fs::write(dir.path().join("ca"), ca.cert_pem()).unwrap();
    std::fs::write(dir.path().join("cert"), &own.cert_pem).unwrap();
    std::fs::write(dir.path().join("key"), own.key_pem.as_str()).unwrap();
    let kubeconfig = format!(
        "apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: 'http://{UNREACHABLE}'}}}}]
users: [{{name: u, user: {{}}}}]
"
    );
    std::fs::write(dir.path().join("kubeconfig"), kubeconfig).unwrap();
    dir
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidewatch-agent")).args(args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_invalid_config_exits_with_2_and_one_line() {
    let dir = files();
    let path = dir.path().join("config.yaml");
    let file = path.to_str().unwrap();
    std::fs::write(&path, config(dir.path())).unwrap();
    std::fs::write(&path, config(dir.path()).replace("resource: pods", "resource: secrets")).unwrap();
    for args in [&["--config", file, "--check"][..], &["--config", file]] {
        let (code, error) = run(args);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("secrets are never watched") && error.lines().count() == 1, "{error}");
    }
    assert_eq!(run(&["--config", "/nonexistent"]).0, Some(2));
    assert_eq!(run(&["--confg", file]).0, Some(2), "a wrong command line");
    assert_eq!(run(&["--version"]).0, Some(0));

    std::fs::write(&path, config(dir.path())).unwrap();
    std::fs::write(dir.path().join("key"), "not a key").unwrap();
    let (code, error) = run(&["--config", file]);
    assert_eq!(code, Some(1), "the configuration is right, its files are not: {error}");
    assert!(error.contains("private key cannot be read"), "{error}");
}

#[test]
fn check_verifies_each_file_and_names_the_wrong_one() {
    let dir = files();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, config(dir.path())).unwrap();
    let check = || run(&["--config", path.to_str().unwrap(), "--check"]);
    assert_eq!(check(), (Some(0), String::new()));

    let (other, old) = (files(), SignedDuration::from_hours(-48));
    let of_another = std::fs::read_to_string(other.path().join("key")).unwrap();
    let ca = Ca::create("test", SignedDuration::from_hours(24), Timestamp::now() + old).unwrap();
    let request = ClientRequest {
        runtime_id: "runtime-1".into(),
        dns_names: vec![],
        organizations: vec![],
        validity: SignedDuration::from_hours(1),
    };
    let expired = ca.issue_client(&request, Timestamp::now() + old).unwrap();
    for (file, content, why) in [
        ("ca", "no PEM", "has no certificate"),
        ("cert", "no PEM", "has no certificate"),
        ("key", "no PEM", "private key cannot be read"),
        ("key", &of_another, "does not belong to the certificate"),
        ("kubeconfig", "users: [", "kubeconfig cannot be read"),
    ] {
        let good = std::fs::read(dir.path().join(file)).unwrap();
        std::fs::write(dir.path().join(file), content).unwrap();
        let (code, error) = check();
        assert!(code == Some(1) && error.contains(why) && error.contains(file), "{file}: {error}");
        std::fs::remove_file(dir.path().join(file)).unwrap();
        let (code, error) = check();
        assert!(code == Some(1) && error.contains(&format!("/{file}")), "{file} is not there: {error}");
        std::fs::write(dir.path().join(file), good).unwrap();
    }
    std::fs::write(dir.path().join("cert"), &expired.cert_pem).unwrap();
    std::fs::write(dir.path().join("key"), expired.key_pem.as_str()).unwrap();
    let (code, error) = check();
    assert!(code == Some(1) && error.contains("/cert") && error.contains("expired at"), "{error}");
}

async fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn until(addr: SocketAddr, path: &str, expected: &[&str]) {
    let mut answer = String::new();
    for _ in 0..2000 {
        answer = get(addr, path).await;
        if expected.iter().all(|text| answer.contains(text)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{path} never had {expected:?}: {answer}");
}

#[tokio::test]
async fn an_unreachable_environment_is_reported_and_not_fatal() {
    let dir = files();
    let drain = Drain::new();
    let bound = app::start(Config::parse(&config(dir.path())).unwrap(), None, &drain).await.unwrap();
    let addr = bound.admin_addr;
    until(addr, "/status", &["\"reason\": \"Unreachable\"", "the receiver cannot be reached", "runtime-1"])
        .await;
    until(addr, "/status", &[&bound.epoch.to_string()]).await;
    until(addr, "/readyz", &["503", "receiver"]).await;
    until(addr, "/healthz", &["200 OK"]).await;
    let state = "tidewatch_agent_watch_state{reason=\"Unreachable\",watch=\"pods\"} 1";
    let failures = "tidewatch_agent_send_failures_total{reason=\"connect\",what=\"connect\"}";
    until(addr, "/metrics", &[state, failures, "tidewatch_agent_connected 0"]).await;
    assert_eq!(drain.shutdown(Duration::from_secs(10)).await, Outcome::Finished);
    // Perhaps another process has the port.
    if let Ok(mut other) = TcpStream::connect(addr).await {
        let _ = other.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(5), other.read_to_end(&mut answer)).await;
        assert!(!String::from_utf8_lossy(&answer).contains("runtime-1"), "the admin endpoint is still open");
    }
}
