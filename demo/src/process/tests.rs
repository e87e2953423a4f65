use super::*;

const LONG: Duration = Duration::from_secs(20);

fn spec(folder: &Path, script: &str) -> Spec {
    Spec {
        name: "program".into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![],
        log: folder.join("program.log"),
        grace: Duration::from_secs(10),
        scratch: None,
        lifetime: Lifetime::WithUs,
    }
}

async fn printed_pid(process: &Process) -> u32 {
    let printed = || async { Ok(process.log_tail(1).trim().parse::<u32>().ok()) };
    process.ready("to print its pid", LONG, printed).await.unwrap()
}

async fn until_gone(pid: u32) {
    wait::until(&format!("{pid} to be gone"), LONG, || async { Ok((!exists(pid)).then_some(())) })
        .await
        .unwrap();
}

/// A zombie has ended.
fn exists(pid: u32) -> bool {
    // `pid (name) state ...`; the name may contain anything.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test]
async fn a_dropped_process_has_ended_and_its_scratch_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = folder.path().join("data");
    let process = Process::start(&Spec {
        scratch: Some(scratch.clone()),
        ..spec(folder.path(), "echo $$; exec sleep 600")
    })
    .unwrap();
    let pid = printed_pid(&process).await;
    assert!(exists(pid) && scratch.is_dir() && process.ended().is_none());
    drop(process);
    assert!(!exists(pid), "it outlived its handle");
    assert!(!scratch.exists());
}

#[tokio::test]
async fn a_process_ignoring_sigterm_is_killed_after_its_grace() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&Spec {
        grace: Duration::from_millis(200),
        ..spec(folder.path(), "trap '' TERM; echo $$; while :; do sleep 600; done")
    })
    .unwrap();
    let pid = printed_pid(&process).await;
    drop(process);
    assert!(!exists(pid));
}

#[tokio::test]
async fn a_process_handling_sigterm_gets_its_grace() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo tidied; exit 0' TERM; echo $$; while :; do sleep 0.1; done";
    let process = Process::start(&spec(folder.path(), script)).unwrap();
    printed_pid(&process).await;
    drop(process);
    assert_eq!(tail(&folder.path().join("program.log"), 1).unwrap(), "tidied");
}

#[tokio::test]
async fn a_killed_process_gets_no_grace() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo tidied; exit 0' TERM; echo $$; while :; do sleep 0.1; done";
    let process = Process::start(&spec(folder.path(), script)).unwrap();
    let pid = printed_pid(&process).await;
    process.kill().await.unwrap();
    assert!(!exists(pid) && process.ended().is_some());
    assert!(!process.log_tail(9).contains("tidied"));
}

#[tokio::test]
async fn an_early_exit_fails_the_wait_with_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&spec(folder.path(), "echo no such flag >&2; exit 3")).unwrap();
    let never = process.ready::<(), _, _>("to answer", Duration::from_mins(10), || async { Ok(None) });
    let text = format!("{:#}", never.await.unwrap_err());
    assert!(text.contains("no such flag") && text.contains("exit status: 3"), "{text}");
}

#[tokio::test]
async fn a_process_gets_only_the_given_environment() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&Spec {
        env: vec![("GIVEN".into(), "yes".into())],
        ..spec(folder.path(), "echo given=$GIVEN cargo=$CARGO_MANIFEST_DIR; exec sleep 600")
    })
    .unwrap();
    let line = || async { Ok(Some(process.log_tail(1)).filter(|line| line.starts_with("given="))) };
    assert_eq!(process.ready("to print", LONG, line).await.unwrap(), "given=yes cargo=");
}

#[tokio::test]
async fn a_detached_process_outlives_its_handle() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let process = Process::start(&Spec {
        program: which("sleep"),
        args: vec!["600".into()],
        lifetime: Lifetime::Detached { pids: pids.clone() },
        ..spec(folder.path(), "")
    })
    .unwrap();
    let pid = process.pid();
    let program = which("sleep").display().to_string();
    // Even before the `exec`.
    assert!(ours(pid, &program));
    drop(process);
    assert!(ours(pid, &program));

    // A pid of another program: this test.
    record(&pids, std::process::id(), Path::new("/no/such/program")).unwrap();
    assert_eq!(end_recorded(&pids, LONG).await.unwrap(), 1);
    assert!(!ours(pid, &program));
    assert_eq!(end_recorded(&pids, LONG).await.unwrap(), 0);
}

fn ours(pid: u32, program: &str) -> bool {
    runs(Path::new("/proc"), pid, program).unwrap()
}

#[tokio::test]
async fn records_of_unidentified_processes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    record(&pids, std::process::id(), Path::new("/no/such/program")).unwrap();
    let text = format!("{:#}", end_recorded_in(folder.path(), &pids, LONG).await.unwrap_err());
    assert!(text.contains("cannot be told") && text.contains("pids names"), "{text}");
    assert!(pids.exists());
    assert_eq!(end_recorded(&pids, LONG).await.unwrap(), 0);
    assert!(!pids.exists());
}

#[test]
fn a_program_is_recognised_by_its_command_line() {
    let proc = tempfile::tempdir().unwrap();
    let put = |pid: &str, line: &str| {
        fs::create_dir_all(proc.path().join(pid)).unwrap();
        fs::write(proc.path().join(pid).join("cmdline"), line).unwrap();
    };
    put("self", "test\0");
    put("1", "/bin/etcd\0--name=a\0");
    put("2", "/bin/sh\0/bin/etcd\0--name=a\0");
    put("3", &format!("sh\0-c\0{DETACHED}\0/bin/etcd\0"));
    put("4", "vi\0-c\0set nowrap\0/bin/etcd\0");
    put("5", "/bin/etcdctl\0");
    put("6", "");
    let known = (1..8).map(|pid| runs(proc.path(), pid, "/bin/etcd").unwrap());
    assert_eq!(known.collect::<Vec<_>>(), [true, true, true, false, false, false, false]);
}

#[test]
fn a_process_still_in_exec_is_waited_for() {
    let proc = tempfile::tempdir().unwrap();
    let put = |pid: &str, state: &str| {
        let folder = proc.path().join(pid);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cmdline"), "").unwrap();
        fs::write(folder.join("stat"), format!("{pid} (a) b) {state} 1 1")).unwrap();
    };
    put("self", "R");
    put("1", "Z");
    put("2", "R");
    assert!(!runs(proc.path(), 1, "/bin/etcd").unwrap());
    std::thread::scope(|scope| {
        let found = scope.spawn(|| runs(proc.path(), 2, "/bin/etcd").unwrap());
        fs::write(proc.path().join("2/cmdline"), "/bin/etcd\0").unwrap();
        assert!(found.join().unwrap());
    });
}

fn which(program: &str) -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .unwrap()
}

/// Run and killed by the test below.
#[test]
fn helper_that_is_killed() {
    let Some(folder) = std::env::var_os("TIDEWATCH_TEST_KILLED_HELPER") else { return };
    let _process = Process::start(&spec(Path::new(&folder), "echo $$; exec sleep 600")).unwrap();
    let _end = std::io::stdin().read(&mut [0]);
}

#[tokio::test]
async fn a_process_ends_when_its_owner_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::tests::helper_that_is_killed", "--nocapture"])
        .env("TIDEWATCH_TEST_KILLED_HELPER", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = folder.path().join("program.log");
    let pid = wait::until("the helper's program", LONG, || async { Ok(tail(&log, 1)?.trim().parse().ok()) })
        .await
        .unwrap();
    assert!(exists(pid));
    owner.kill().unwrap();
    owner.wait().unwrap();
    until_gone(pid).await;
}
