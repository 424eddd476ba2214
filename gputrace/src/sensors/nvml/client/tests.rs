//! Tests of [`super`].

use tokio::process::Command;

use super::*;

/// Long enough that only a real hang reaches it.
const LONG: Duration = Duration::from_secs(60);
/// For what never answers.
const SHORT: Duration = Duration::from_millis(50);

/// A child that runs a shell script, with `$n` the number of the request just read by `ask`.
fn client(script: &str) -> NvmlClient {
    let script = format!(
        "n=0; ask() {{ IFS= read -r line || exit 0; n=$((n+1)); }}
         answer() {{ printf '%s' '{{\"request\":'\"$n\"',\"sample\":{{\"driver_version\":{{\"value\":\"1.'\"$n\"'\"}},\"devices\":{{\"value\":[]}}}}}}'; echo; }}
         {script}"
    );
    NvmlClient::new(NvmlOptions {
        executable: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".into(), script.into()],
        first_pause: Duration::ZERO,
        ..NvmlOptions::default()
    })
}

fn version(sample: &Evidence<Sample>) -> Option<&str> {
    sample.value()?.driver_version.value().map(String::as_str)
}

fn reason(sample: &Evidence<Sample>) -> &str {
    sample.reason().unwrap_or_else(|| panic!("{sample:?}"))
}

#[tokio::test(flavor = "current_thread")]
async fn one_child_answers_again_and_again() {
    let mut client = client("while ask; do answer; done");
    assert_eq!(client.child(), None);
    assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
    let child = client.child();
    assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
    assert_eq!(client.child(), child);
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_child_is_waited_for() {
    let mut client = client("ask; sleep 0.2; answer");
    assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_reply_may_come_in_pieces() {
    let mut client = client(
        "ask; answer | while IFS= read -r l; do
        printf '%s' \"${l%??????}\"; sleep 0.1; echo \"${l#\"${l%??????}\"}\"; done; ask",
    );
    assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_child_that_hangs_is_killed_and_replaced() {
    // `exec`, so that no second process of the shell holds the pipe.
    let mut client = client("ask; exec sleep 600");
    let sample = client.sample(SHORT).await;
    assert!(reason(&sample).contains("did not answer within 0.05 s"));
    assert_eq!(client.child(), None);
    // It ends by the signal; its status is taken by and by.
    while !client.abandoned.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        client.reap();
    }
    assert!(!client.sample(SHORT).await.is_available());
}

#[tokio::test(flavor = "current_thread")]
async fn a_failure_is_followed_by_a_pause() {
    let mut client = client("exit 3");
    client.options.first_pause = LONG;
    let sample = client.sample(LONG).await;
    assert!(reason(&sample).contains("exit status: 3"), "{sample:?}");
    // Now without a child.
    client.options.executable = PathBuf::from("/nonexistent");
    assert_eq!(client.sample(LONG).await, sample);
}

#[tokio::test(flavor = "current_thread")]
async fn pauses_grow_up_to_a_limit() {
    let mut client = client("exit 3");
    client.options.first_pause = Duration::from_secs(1);
    for _ in 0..40 {
        client.give_up(&Failure::Ended(String::new()));
    }
    let failed = client.failed.as_ref().unwrap();
    assert_eq!(failed.times, 40);
    assert!(failed.next <= Instant::now() + MAX_PAUSE);
}

#[tokio::test(flavor = "current_thread")]
async fn a_child_that_dies_is_named_with_its_signal_and_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let flag = directory.path().join("flag");
    let flag = flag.display();
    let mut client = client(&format!(
        "ask; if [ -e {flag} ]; then n=2; answer; else : > {flag}; kill -SEGV $$; fi"
    ));
    let sample = client.sample(LONG).await;
    assert!(reason(&sample).contains("signal: 11"), "{sample:?}");
    assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
    assert!(client.failed.is_none());
}

#[tokio::test(flavor = "current_thread")]
async fn garbage_is_not_believed() {
    for script in [
        "echo hello",
        "echo '{}'",
        r#"printf '\377\376\n'"#,
        "n=7; answer",
        r#"echo '{"request":1,"sample":{"driver_version":{"value":1},"devices":{"value":[]}}}'"#,
    ] {
        let mut client = client(&format!("ask; {script}; ask"));
        let sample = client.sample(LONG).await;
        assert!(!sample.is_available(), "{script}");
        assert_eq!(client.child(), None);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_reason_from_the_child_is_passed_on_and_keeps_it() {
    let mut client =
        client(r#"while ask; do echo '{"request":'"$n"',"failure":"no driver\u001b[2J"}'; done"#);
    let sample = client.sample(LONG).await;
    assert_eq!(reason(&sample), r"no driver\x1b[2J");
    let child = client.child();
    assert!(child.is_some());
    client.sample(LONG).await;
    assert_eq!(client.child(), child);
}

#[tokio::test(flavor = "current_thread")]
async fn an_answer_that_nobody_waited_for_is_passed_over() {
    let mut client = client("ask; ask; n=1; answer; n=2; answer; ask");
    assert!(
        timeout_at(Instant::now() + SHORT, client.sample(LONG))
            .await
            .is_err()
    );
    assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_program_that_is_not_there_is_a_reason() {
    let mut client = client("");
    client.options.executable = PathBuf::from("/nonexistent/gputrace");
    let sample = client.sample(LONG).await;
    assert!(reason(&sample).contains("could not be started"));
}

#[tokio::test(flavor = "current_thread")]
async fn stuck_children_are_not_joined_by_more() {
    let mut client = client("while ask; do answer; done");
    for _ in 0..MAX_STUCK {
        // Processes that do not end are to the client as if the driver kept them.
        let child = Command::new("sleep").arg("600").kill_on_drop(true).spawn();
        client.abandoned.push(child.unwrap());
    }
    let sample = client.sample(LONG).await;
    assert!(reason(&sample).contains("stuck in the driver"));
    client.abandoned.pop();
    assert!(client.sample(LONG).await.is_available());
}

#[tokio::test(flavor = "current_thread")]
async fn the_child_inherits_nothing_else() {
    // A file without close-on-exec, as a caller may have passed one to gputrace.
    let file = tempfile::tempfile().unwrap();
    let plain = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_DUPFD(3)).unwrap();
    let inherited = std::fs::read_link(format!("/proc/self/fd/{plain}")).unwrap();
    let mut client = client("ask; answer; ask");
    assert!(client.sample(LONG).await.is_available());
    let child = client.child().unwrap();
    for entry in std::fs::read_dir(format!("/proc/{child}/fd")).unwrap() {
        let entry = entry.unwrap();
        assert_ne!(std::fs::read_link(entry.path()).unwrap(), inherited);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_child_ends_with_the_client() {
    let mut client = client("while ask; do answer; done");
    client.sample(LONG).await;
    let child = client.child().unwrap();
    drop(client);
    let procfs = crate::identity::procfs::Procfs::default();
    while procfs.stat(child).is_ok_and(|stat| stat.state != 'Z') {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
