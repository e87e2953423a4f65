//! Invalid certificates and requests: status, metric, one log line, no panic, and a usable connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{Watcher, names};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tidewatch_tests::{
    env,
    fleet::{self, Identity, Receiver},
    kcp,
    mtls::{Answer, Body, Connection, Http, counted, sized, unsized_of},
    observed::{self, LogMark, metric},
    wait,
};
use tidewatch_wire::{Epoch, ErrorBody, Route, Seq, limits, v3};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
};

const SOON: Duration = Duration::from_secs(20);
const V2: &str = "/v2/lifecycle-manager/event";
/// Registered Kymas and runtime ids.
const ANCHOR: (&str, &str, &str) = ("anchor", "runtime-anchor", "anchor.runtimes.example");
const BUOY: (&str, &str, &str) = ("buoy", "runtime-buoy", "buoy.runtimes.example");

struct Door {
    receiver: Receiver,
    good: Identity,
}

#[derive(Clone, Copy)]
struct Refusal {
    status: u16,
    reason: &'static str,
    endpoint: &'static str,
}

const fn refusal(status: u16, reason: &'static str, endpoint: &'static str) -> Refusal {
    Refusal { status, reason, endpoint }
}

impl Door {
    async fn open(namespace: &str) -> Result<Self> {
        let env = env::shared().await?;
        let client = env.kcp.client()?;
        fleet::prepare_kcp(&client, namespace).await?;
        for (kyma, id, domain) in [ANCHOR, BUOY] {
            kcp::put_kyma(&client, namespace, kyma, id, Some(domain)).await?;
        }
        let receiver = Receiver::start_without_agents(
            &env.harness,
            &env.kcp,
            namespace,
            &env.registry.of(namespace),
            Vec::new(),
        )
        .await?;
        let good = receiver.identity(&env.harness, ANCHOR.1, ANCHOR.2)?;
        let door = Self { receiver, good };
        door.greet().await?;
        Ok(door)
    }

    async fn connect(&self, http: Http) -> Result<Connection> {
        Connection::open(&self.receiver, Some(&self.good.issued), http).await
    }

    async fn greet(&self) -> Result<()> {
        heartbeat(&mut self.connect(Http::H2).await?).await
    }

    async fn metric(&self, name: &str) -> Result<u64> {
        metric(&self.receiver.admin, &format!("tidewatch_receiver_{name}")).await
    }

    fn issue(&self, id: &str, domain: &str) -> Result<Issued> {
        Ok(self.receiver.ca.issue_client(&certificate(id, domain), Timestamp::now())?)
    }

    /// Sends an invalid request and checks all effects.
    async fn refuses(
        &self,
        connection: &mut Connection,
        (method, path, body): (&str, &str, Body),
        Refusal { status, reason, endpoint }: Refusal,
    ) -> Result<Answer> {
        let what = format!("{method} {path}, which is to be refused as {reason}");
        let refused = format!("refused_requests_total{{reason=\"{reason}\"}}");
        let answered = format!("requests_total{{code=\"{status}\",endpoint=\"{endpoint}\"}}");
        let before = (self.metric(&refused).await?, self.metric(&answered).await?);
        let log = LogMark::here(&self.receiver.process)?;

        let answer = connection.send(method, path, body).await.with_context(|| what.clone())?;

        ensure!(answer.status() == status, "{what}: {} {:?}", answer.status(), answer.body());
        let told: ErrorBody =
            serde_json::from_slice(answer.body()).with_context(|| format!("{what}: {answer:?}"))?;
        ensure!(told.error == reason.replace('_', "-"), "{what}: {told:?}");
        let plain =
            !told.message.is_empty() && told.message.len() < 500 && !told.message.contains(char::is_control);
        ensure!(plain, "{what}: {} bytes: {:.500}", told.message.len(), told.message);
        let after = (self.metric(&refused).await?, self.metric(&answered).await?);
        ensure!(after == (before.0 + 1, before.1 + 1), "{what}: metrics went from {before:?} to {after:?}");
        one_line(&log, &self.receiver.process, reason).with_context(|| what.clone())?;
        observed::no_panic(&self.receiver.process)?;
        fleet::alive(&self.receiver.process)?;
        Ok(answer)
    }
}

/// Expects at most one log line per reason: repeated refusals are logged at counts 1, 10, 100.
fn one_line(log: &LogMark<'_>, process: &tidewatch_tests::Process, reason: &str) -> Result<()> {
    let (lines, told) = (log.lines("tidewatch_listener")?, format!("reason=\"{reason}\""));
    ensure!(lines.iter().all(|line| line.len() < 1_000), "a log line is long: {:.1000}", lines.concat());
    ensure!(lines.len() <= 1, "{} log lines instead of one: {lines:#?}", lines.len());
    ensure!(lines.iter().all(|line| line.contains(&told)), "{lines:?} does not say {reason}");
    ensure!(observed::text(process)?.contains(&told), "{reason} was never logged");
    Ok(())
}

fn certificate(id: &str, domain: &str) -> ClientRequest {
    ClientRequest {
        runtime_id: id.to_owned(),
        dns_names: vec![domain.to_owned()],
        organizations: Vec::new(),
        validity: SignedDuration::from_hours(1),
    }
}

fn heartbeat_body() -> Body {
    sized(json!({"epoch": Epoch::random()}).to_string())
}

async fn heartbeat(connection: &mut Connection) -> Result<()> {
    let answer = connection.send("POST", v3::PATH, heartbeat_body()).await?;
    ensure!(answer.status() == 200, "a heartbeat was answered with {}: {:?}", answer.status(), answer.body());
    let _parses: v3::Response = serde_json::from_slice(answer.body())?;
    Ok(())
}

#[tokio::test]
async fn a_handshake_without_a_good_certificate_is_refused() -> Result<()> {
    let door = Door::open("kcp-bad-handshake").await?;
    let mut earlier = door.connect(Http::H2).await?;
    heartbeat(&mut earlier).await?;
    let now = Timestamp::now();
    let day = SignedDuration::from_hours(24);
    let wanted = certificate(ANCHOR.1, ANCHOR.2);
    let stranger = Ca::create("somebody-else", day, now)?.issue_client(&wanted, now)?;
    // The name matches, the key does not.
    let impostor = Ca::create("tidewatch-event-path", day, now)?.issue_client(&wanted, now)?;
    let expired = door.receiver.ca.issue_client(&wanted, now - SignedDuration::from_hours(2))?;
    let future = door.receiver.ca.issue_client(&wanted, now + SignedDuration::from_hours(2))?;
    let other_use = ServerRequest {
        common_name: ANCHOR.1.to_owned(),
        dns_names: vec![ANCHOR.2.to_owned()],
        ip_addrs: Vec::new(),
        validity: day,
    };
    let of_a_server = door.receiver.ca.issue_server(&other_use, now)?;
    for (name, identity, reason) in [
        ("another CA", Some(stranger), "unknown_ca"),
        ("another CA of the same name", Some(impostor), "unknown_ca"),
        ("expired", Some(expired), "expired"),
        ("not yet valid", Some(future), "expired"),
        ("no certificate", None, "no_certificate"),
        ("a server's certificate", Some(of_a_server), "bad_certificate"),
    ] {
        for http in [Http::H1, Http::H2] {
            let what = format!("{name}, {http:?}");
            let refused = Failing::begin(&door, reason).await?;
            // The client's handshake ends before the server verifies the certificate.
            let served = async {
                let mut connection = Connection::open(&door.receiver, identity.as_ref(), http).await?;
                connection.send("POST", v3::PATH, heartbeat_body()).await
            };
            let served = served.await.map(|answer| answer.status());
            ensure!(served.is_err(), "{what}: answered with {served:?}");
            refused.end(&door).await.with_context(|| what)?;
        }
    }
    let refused = Failing::begin(&door, "protocol").await?;
    let address = door.receiver.url.trim_start_matches("https://");
    let mut plain = TcpStream::connect(address).await?;
    plain.write_all(b"POST /v3/events HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await?;
    let mut answer = Vec::new();
    // Closed or reset, with or without a TLS alert, but never answered.
    let _how = plain.read_to_end(&mut answer).await;
    ensure!(!answer.starts_with(b"HTTP"), "plain HTTP was answered: {:?}", String::from_utf8_lossy(&answer));
    refused.end(&door).await.context("plain HTTP")?;

    heartbeat(&mut earlier).await.context("on the connection opened before")?;
    door.greet().await
}

struct Failing<'a> {
    reason: &'static str,
    before: u64,
    requests: u64,
    log: LogMark<'a>,
}

impl<'a> Failing<'a> {
    const REQUESTS: &'static str = "requests_total{code=\"200\",endpoint=\"v3\"}";

    async fn begin(door: &'a Door, reason: &'static str) -> Result<Self> {
        Ok(Self {
            reason,
            before: door.metric(&Self::series(reason)).await?,
            requests: door.metric(Self::REQUESTS).await?,
            log: LogMark::here(&door.receiver.process)?,
        })
    }

    fn series(reason: &str) -> String {
        format!("handshake_failures_total{{reason=\"{reason}\"}}")
    }

    async fn end(self, door: &Door) -> Result<()> {
        let Self { reason, before, requests, log } = self;
        wait::until(&format!("handshake failures by {reason} to become {}", before + 1), SOON, || async {
            let now = door.metric(&Self::series(reason)).await?;
            ensure!(now <= before + 1, "there are {now}");
            Ok((now > before).then_some(()))
        })
        .await?;
        ensure!(door.metric(Self::REQUESTS).await? == requests, "a request came through");
        one_line(&log, &door.receiver.process, reason)?;
        observed::no_panic(&door.receiver.process)?;
        fleet::alive(&door.receiver.process)
    }
}

#[tokio::test]
async fn a_certificate_authenticates_only_its_own_runtime() -> Result<()> {
    let namespace = "kcp-bad-identity";
    let door = Door::open(namespace).await?;
    let client = env::shared().await?.kcp.client()?;
    for (name, id, domain) in [
        ("nowhere", "runtime-nowhere", None),
        ("twin-a", "runtime-twins", Some(ANCHOR.2)),
        ("twin-b", "runtime-twins", Some(ANCHOR.2)),
    ] {
        kcp::put_kyma(&client, namespace, name, id, domain).await?;
    }
    let twins = door.issue("runtime-twins", ANCHOR.2)?;
    wait::until("the receiver to know all Kymas", SOON, || async {
        let mut connection = Connection::open(&door.receiver, Some(&twins), Http::H2).await?;
        let answer = connection.send("POST", v3::PATH, heartbeat_body()).await?;
        ensure!(answer.body().starts_with(b"{\"error\":\"ambiguous-runtime\""), "answered with {answer:?}");
        Ok(Some(()))
    })
    .await?;

    for http in [Http::H1, Http::H2] {
        for (id, domain, reason) in [
            // A certificate signed by A must not authenticate B.
            (BUOY.1, ANCHOR.2, "san_mismatch"),
            ("runtime-nobody", ANCHOR.2, "unknown_runtime"),
            ("runtime-nowhere", ANCHOR.2, "no_domain"),
            ("runtime-twins", ANCHOR.2, "ambiguous_runtime"),
        ] {
            let issued = door.issue(id, domain)?;
            let mut connection = Connection::open(&door.receiver, Some(&issued), http).await?;
            for (path, endpoint) in [(v3::PATH, "v3"), (V2, "v2")] {
                // Twice, because the connection must stay usable.
                for _ in 0..2 {
                    let request = ("POST", path, heartbeat_body());
                    door.refuses(&mut connection, request, refusal(403, reason, endpoint)).await?;
                }
            }
        }
    }

    // The common name alone is no proof, and too many names are not compared.
    let names = |dns_names| ClientRequest { dns_names, ..certificate(ANCHOR.1, ANCHOR.2) };
    let many = (0..100).map(|n| format!("n{n}.example")).chain([ANCHOR.2.to_owned()]).collect();
    for (request, status, reason) in
        [(names(Vec::new()), 403, "san_mismatch"), (names(many), 400, "too_many_sans")]
    {
        let issued = door.receiver.ca.issue_client(&request, Timestamp::now())?;
        let mut connection = Connection::open(&door.receiver, Some(&issued), Http::H2).await?;
        let request = ("POST", v3::PATH, heartbeat_body());
        door.refuses(&mut connection, request, refusal(status, reason, "v3")).await?;
    }

    // A refused connection works after the runtime's registration.
    let issued = door.issue("runtime-late", "late.runtimes.example")?;
    let mut connection = Connection::open(&door.receiver, Some(&issued), Http::H2).await?;
    let request = ("POST", v3::PATH, heartbeat_body());
    door.refuses(&mut connection, request, refusal(403, "unknown_runtime", "v3")).await?;
    kcp::put_kyma(&client, namespace, "late", "runtime-late", Some("late.runtimes.example")).await?;
    let connection = Mutex::new(connection);
    wait::until("the runtime registered late to be served", SOON, || async {
        heartbeat(&mut *connection.lock().await).await.map(Some)
    })
    .await
}

#[tokio::test]
async fn an_oversized_or_malformed_body_is_refused() -> Result<()> {
    let door = Door::open("kcp-bad-body").await?;
    for http in [Http::H1, Http::H2] {
        for (path, endpoint, limit) in
            [(V2, "v2", limits::V2_BODY_BYTES), (v3::PATH, "v3", limits::V3_BODY_BYTES)]
        {
            for length in [limit + 1, 3 * limit] {
                for body in [sized(vec![b' '; length]), unsized_of(b' ', length)] {
                    let mut connection = door.connect(http).await?;
                    let expected = refusal(413, "too_large", endpoint);
                    door.refuses(&mut connection, ("POST", path, body), expected).await?;
                    after(&door, connection, http).await?;
                }
            }
            // At the limit, the body is read and parsed.
            for body in [sized(vec![b' '; limit]), unsized_of(b' ', limit)] {
                let mut connection = door.connect(http).await?;
                door.refuses(&mut connection, ("POST", path, body), refusal(400, "malformed", endpoint))
                    .await?;
                heartbeat(&mut connection).await?;
            }
        }
        let mut connection = door.connect(http).await?;
        for (path, endpoint, body) in malformed() {
            let request = ("POST", path, sized(body.clone()));
            door.refuses(&mut connection, request, refusal(400, "malformed", endpoint))
                .await
                .with_context(|| format!("{body:.200}"))?;
            heartbeat(&mut connection).await?;
        }
    }
    ensure!(door.metric("events_held").await? == 0, "of a refused request nothing is kept");
    Ok(())
}

/// Some clients read the answer only after sending everything, and lose it on a stream reset.
#[tokio::test]
async fn a_client_still_sending_is_answered() -> Result<()> {
    let door = Door::open("kcp-bad-sender").await?;
    let length = 3 * limits::V3_BODY_BYTES;
    for http in [Http::H1, Http::H2] {
        for (path, endpoint) in [(V2, "v2"), (v3::PATH, "v3")] {
            let mut connection = door.connect(http).await?;
            let sent = Arc::new(AtomicUsize::new(0));
            let body = counted(b' ', length, Arc::clone(&sent));
            door.refuses(&mut connection, ("POST", path, body), refusal(413, "too_large", endpoint)).await?;
            let sent = sent.load(Ordering::Relaxed);
            ensure!(sent == length, "{http:?} {path}: stopped after {sent} bytes");
            after(&door, connection, http).await?;
        }
    }
    Ok(())
}

/// HTTP/2 continues on another stream. HTTP/1.1 with an unread body needs a new connection.
async fn after(door: &Door, mut connection: Connection, http: Http) -> Result<()> {
    if http == Http::H2 || connection.is_usable() {
        match heartbeat(&mut connection).await {
            Err(error) if http == Http::H2 => return Err(error),
            // The server was closing it.
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
    door.greet().await
}

fn malformed() -> Vec<(&'static str, &'static str, String)> {
    let epoch = Epoch::random();
    let event = |field: &str, value: Value| {
        let mut event = json!({"seq": 1, "watch": "w", "version": "v1", "kind": "K", "name": "n",
                               "change": "changed", "observedAt": "2026-01-01T00:00:00Z"});
        event[field] = value;
        json!({"epoch": epoch, "events": [event]}).to_string()
    };
    let many = vec![
        json!({"seq": 1, "watch": "w", "version": "v1", "kind": "K", "name": "n",
                           "change": "changed", "observedAt": "2026-01-01T00:00:00Z"});
        limits::V3_EVENTS + 1
    ];
    let deep = "[".repeat(10_000);
    let v3 = [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "\u{0}\u{1}".to_owned(),
        deep.clone(),
        json!({"epoch": "not-a-uuid"}).to_string(),
        event("name", json!("")),
        event("name", json!("n".repeat(limits::FIELD_BYTES + 1))),
        event("seq", json!(-1)),
        // Error messages must be short and on one line.
        event("seq", json!("s".repeat(500_000))),
        event("change", json!("a\r\nWARN tidewatch_listener: b\u{1b}[31m")),
        event("change", json!("exploded")),
        event("observedAt", json!("yesterday")),
        json!({"epoch": epoch, "events": many}).to_string(),
        json!({"epoch": epoch, "awaiting": [[5, 1]]}).to_string(),
    ];
    let v2 = [
        "{}".to_owned(),
        "not json".to_owned(),
        deep,
        json!({"watched": {"Name": 7}, "watchedGvk": {"version": "v1", "kind": "K"}}).to_string(),
    ];
    v3.into_iter().map(|b| (v3::PATH, "v3", b)).chain(v2.into_iter().map(|b| (V2, "v2", b))).collect()
}

#[tokio::test]
async fn a_wrong_method_path_or_manager_is_refused() -> Result<()> {
    let namespace = "kcp-bad-path";
    let door = Door::open(namespace).await?;
    watcher(namespace, "harbour-master").await?;
    let forwarded = "/v2/harbour-master/event";
    wait::until("the receiver to know the Watcher", SOON, || async {
        let answer = door.connect(Http::H2).await?.send("POST", forwarded, sized("{}")).await?;
        Ok((answer.status() == 501).then_some(()))
    })
    .await?;
    let long = format!("/v2/{}/event", "m".repeat(2_000));
    for http in [Http::H1, Http::H2] {
        let mut connection = door.connect(http).await?;
        for (path, endpoint) in [(v3::PATH, "v3"), (V2, "v2")] {
            for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"] {
                let request = (method, path, sized("{}"));
                let answer = door.refuses(&mut connection, request, refusal(405, "method", endpoint)).await?;
                let allow = answer.headers().get("allow").and_then(|v| v.to_str().ok());
                ensure!(allow == Some("POST"), "{method}: Allow is {allow:?}");
                heartbeat(&mut connection).await?;
            }
        }
        for path in [
            "/",
            "/v3",
            "/v3/event",
            "/v3/events/",
            "/v1/events",
            "/v2/event",
            "/v2//event",
            "/v2/a/b/event",
            "/%00/..%2f",
        ] {
            for method in ["POST", "GET"] {
                let request = (method, path, sized("{}"));
                door.refuses(&mut connection, request, refusal(404, "no_such_path", "other")).await?;
                heartbeat(&mut connection).await?;
            }
        }
        for path in ["/v2/nobody/event", &long] {
            let request = ("POST", path, sized("{}"));
            door.refuses(&mut connection, request, refusal(404, "unknown_manager", "v2")).await?;
            heartbeat(&mut connection).await?;
        }
        let request = ("POST", forwarded, sized("{}"));
        door.refuses(&mut connection, request, refusal(501, "not_forwarded", "v2")).await?;
        heartbeat(&mut connection).await?;
    }
    Ok(())
}

async fn watcher(namespace: &str, manager: &str) -> Result<()> {
    let api: Api<Watcher> = Api::namespaced(env::shared().await?.kcp.client()?, namespace);
    let body = json!({
        "apiVersion": names::API_VERSION, "kind": "Watcher", "metadata": {"name": manager},
        // Without a port there is no route.
        "spec": {"serviceInfo": {"name": "s", "namespace": namespace, "port": 0}, "manager": manager,
                 "resourceToWatch": {"group": "", "version": "*", "resource": "configmaps"},
                 "field": "spec", "gateway": {"selector": {"matchLabels": {"a": "b"}}}}
    });
    api.patch(manager, &PatchParams::apply("tidewatch-tests").force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Both contracts and both HTTP versions accept valid events.
#[tokio::test]
async fn good_events_of_both_contracts_are_reconciled() -> Result<()> {
    let door = Door::open("kcp-good-events").await?;
    for http in [Http::H1, Http::H2] {
        let mut connection = door.connect(http).await?;
        heartbeat(&mut connection).await?;

        let before = reconciles_by(&door, "v2").await?;
        let event = json!({"watched": {"Namespace": "kyma-system", "Name": "default"},
                           "watchedGvk": {"group": names::GROUP, "version": names::VERSION, "kind": "Kyma"}});
        let answer = connection.send("POST", V2, sized(event.to_string())).await?;
        ensure!(answer.status() == 200, "{answer:?}");
        wait::until("a reconcile that the v2 event caused", SOON, || async {
            let now = reconciles_by(&door, "v2").await?;
            Ok((now > before).then_some(()))
        })
        .await?;

        let watch = format!("kymas-{http:?}").to_lowercase();
        let event = json!({"seq": 7, "watch": watch, "group": names::GROUP, "version": names::VERSION,
                           "kind": "Kyma", "namespace": "kyma-system", "name": "default",
                           "change": "changed", "observedAt": Timestamp::now()});
        let epoch = Epoch::random();
        let request = json!({"epoch": epoch, "events": [event], "awaiting": [[7, 7]], "poll": true});
        let answer = connection.send("POST", v3::PATH, sized(request.to_string())).await?;
        ensure!(answer.status() == 200, "{answer:?}");
        let answer: v3::Response = serde_json::from_slice(answer.body())?;
        let done = answer.acks.iter().any(|a| a.route == Route::engine() && a.done.contains(Seq(7)));
        ensure!(answer.epoch == epoch && done, "the event is not acknowledged: {answer:?}");
        ensure!(reconciles_by(&door, &watch).await? == 1, "the acknowledged event was not reconciled");
    }
    observed::no_panic(&door.receiver.process)
}

async fn reconciles_by(door: &Door, watch: &str) -> Result<usize> {
    let page = door.receiver.runtime(ANCHOR.1).await?;
    let records = page["reconciles"].as_array().context("the page has no reconciles")?;
    let key = format!("Kyma/{}", ANCHOR.0);
    let caused = |record: &&Value| {
        record["key"] == key.as_str()
            && record["causes"].as_array().is_some_and(|causes| causes.iter().any(|c| c["watch"] == watch))
    };
    Ok(records.iter().filter(caused).count())
}
