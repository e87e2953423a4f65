//! Measures a fleet's memory: `fleet [RUNTIMES]` (default 10,000), each with 100 objects, over HTTPS.
//!
//! A child process lists and watches every runtime's Deployments, like agents. `ulimit -n`: three files per
//! runtime.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program whose output is its use, with helpers of a test"
)]

#[path = "../tests/realistic/mod.rs"]
mod realistic;

use std::{
    env,
    error::Error,
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, Config,
    api::{ListParams, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{Options, Server, ServerOptions, Token, User};

type Failure = Box<dyn Error + Send + Sync>;
type Result<T = (), E = Failure> = std::result::Result<T, E>;

const RUNTIMES: u64 = 10_000;
/// Goal for 10,000 runtimes.
const MAX_MIB: u64 = 4_096;
/// Concurrent connects.
const AT_ONCE: usize = 64;
const LISTED: &str = "listed";
const WATCHED: &str = "watched";

fn main() -> Result {
    let args: Vec<String> = env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match args.as_slice() {
        [] => runtime.block_on(play(RUNTIMES)),
        [count] => runtime.block_on(play(count.parse()?)),
        [word, kubeconfig, count] if word == "client" => runtime.block_on(client(kubeconfig, count.parse()?)),
        _ => Err("usage: fleet [RUNTIMES]".into()),
    }
}

fn resident_mib() -> Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no such file")?.parse()?;
    Ok(pages * 4 / 1024)
}

fn name(runtime: u64) -> String {
    format!("runtime-{runtime}")
}

async fn play(runtimes: u64) -> Result {
    let drain = Drain::new();
    let server = Server::start(ServerOptions::default(), &drain).await?;
    println!("{:>7} MiB with nothing", resident_mib()?);
    let user = Arc::new(User::admin("admin"));
    thread::scope(|scope| {
        let half = |odd: u64| {
            let (server, user) = (server.clone(), Arc::clone(&user));
            move || -> Result<usize> {
                let mut objects = 0;
                for runtime in (0..runtimes).filter(|runtime| runtime % 2 == odd) {
                    let hosted =
                        server.add(&name(runtime), Options { seed: runtime, ..Options::default() })?;
                    hosted.allow_token(Token("fleet".to_owned()), User::admin("admin"));
                    hosted.with(|cluster| {
                        realistic::fill(cluster, &user, runtime);
                        objects += cluster.len();
                    });
                }
                Ok(objects)
            }
        };
        let halves = [scope.spawn(half(0)), scope.spawn(half(1))];
        let mut objects = 0;
        for half in halves {
            objects += half.join().map_err(|_| "a thread has panicked")??;
        }
        println!("{:>7} MiB with {runtimes} runtimes, {objects} objects", resident_mib()?);
        Ok::<_, Failure>(())
    })?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig(&name(0), "fleet"))?;
    let mut child = Command::new(env::current_exe()?)
        .arg("client")
        .arg(&kubeconfig)
        .arg(runtimes.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let peak = tokio::task::spawn_blocking(move || -> Result<u64> {
        let mut peak = 0;
        for line in BufReader::new(output).lines() {
            let now = resident_mib()?;
            peak = peak.max(now);
            match line?.as_str() {
                LISTED => println!("{now:>7} MiB with a client of each that has listed its Deployments"),
                WATCHED => {
                    println!("{now:>7} MiB while each watches its Deployments");
                    break;
                }
                other => return Err(format!("the clients said: {other}").into()),
            }
        }
        Ok(peak)
    })
    .await??;
    // Closing its input ends it.
    drop(child.stdin.take());
    child.wait()?;
    let goal = MAX_MIB * runtimes / RUNTIMES;
    println!("goal: {goal} MiB for {runtimes} runtimes: {}", if peak <= goal { "met" } else { "missed" });
    Ok(())
}

async fn client(kubeconfig: &str, runtimes: u64) -> Result {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default())
            .await?;
    let first = config.cluster_url.to_string();
    let base = first
        .strip_suffix(&name(0))
        .or_else(|| first.strip_suffix(&format!("{}/", name(0))))
        .ok_or("another URL")?;
    let listed: Vec<(Api<Deployment>, String)> = stream::iter(0..runtimes)
        .map(|runtime| {
            let mut config = config.clone();
            let url = format!("{base}{}", name(runtime)).parse();
            async move {
                config.cluster_url = url?;
                let api: Api<Deployment> = Api::all(Client::try_from(config)?);
                let list = api.list(&ListParams::default()).await?;
                assert_eq!(list.items.len(), 10, "the Deployments of its modules");
                Ok::<_, Failure>((api, list.metadata.resource_version.unwrap_or_default()))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let mut out = std::io::stdout();
    writeln!(out, "{LISTED}")?;
    // Open once the answer starts.
    let watches: Vec<_> = stream::iter(&listed)
        .map(|(api, version)| async move {
            Ok::<_, Failure>(api.watch(&WatchParams::default().timeout(290), version).await?.boxed())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    writeln!(out, "{WATCHED}")?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
    drop(watches);
    Ok(())
}
