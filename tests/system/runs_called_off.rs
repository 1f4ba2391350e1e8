//! Calling off, at every moment; attempts; what kills its daemon.

use rustix::process::Signal;

use crate::run_bed::{RunBed, attempt, cancel, starts, task};

#[tokio::test]
async fn a_run_that_is_called_off_is_stopped_and_keeps_what_it_had() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "WAIT")).await;
    bed.until_logged("job-1 start").await;
    bed.deliver(&mut link, cancel(9, 1)).await;
    link.status(1, "cancelled").await;
    link.stage(9, "done").await;
    let result = &link.results(1)[0];
    assert_eq!(result["text"], "partial");
    assert_eq!(bed.log(), ["job-1 start", "job-1 stopped"]);
    let told = link.told(1);
    assert!(!told.contains(&"completed".to_owned()), "{told:?}");
}

#[tokio::test]
async fn what_is_called_off_before_it_came_or_while_it_waits_is_never_started() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, cancel(90, 1)).await;
    link.stage(90, "done").await;
    // Made before its cancel, delivered after it, and over a restart.
    bed.end(Signal::KILL).await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "")).await;
    link.status(1, "cancelled").await;
    // One that waits for the folder, and one that nothing holds.
    bed.deliver(&mut link, task(2, 2, "WAIT")).await;
    bed.deliver(&mut link, task(3, 2, "")).await;
    link.status(3, "blocked").await;
    bed.deliver(&mut link, cancel(93, 3)).await;
    link.status(3, "cancelled").await;
    bed.go(2);
    link.status(2, "completed").await;
    let log = bed.log();
    assert_eq!((starts(&log, 1), starts(&log, 3)), (0, 0), "{log:?}");
}

#[tokio::test]
async fn a_cancel_and_its_task_in_one_batch_start_nothing_or_stop_it() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    for n in 1..=12 {
        bed.deliver(&mut link, task(n, 1, "WAIT")).await;
        bed.deliver(&mut link, cancel(100 + n, n)).await;
    }
    for n in 1..=12 {
        link.status(n, "cancelled").await;
        link.stage(100 + n, "done").await;
        let told = link.told(n);
        assert!(!told.contains(&"completed".to_owned()), "{told:?}");
    }
    let log = bed.log();
    let stopped = log.iter().filter(|l| l.ends_with("stopped")).count();
    let started = log.iter().filter(|l| l.ends_with("start")).count();
    assert!(stopped <= started, "{log:?}");
    assert!(!log.iter().any(|l| l.ends_with(" end")), "{log:?}");
}

#[tokio::test]
async fn a_cancel_after_the_end_changes_nothing() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "")).await;
    link.status(1, "completed").await;
    link.stage(1, "done").await;
    let before = link.told(1);
    bed.deliver(&mut link, cancel(9, 1)).await;
    link.stage(9, "done").await;
    assert_eq!(link.told(1), before);
}

#[tokio::test]
async fn a_run_called_off_while_the_link_was_down_is_stopped_when_the_link_is_back() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "WAIT")).await;
    bed.until_logged("job-1 start").await;
    link.cut();
    let mut link = bed.link().await;
    bed.deliver(&mut link, cancel(9, 1)).await;
    bed.until_logged("job-1 stopped").await;
    link.status(1, "cancelled").await;
}

#[tokio::test]
async fn what_a_dead_daemon_left_running_is_stopped_and_a_later_cancel_changes_nothing() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, task(1, 1, "WAIT")).await;
    bed.until_logged("job-1 start").await;
    bed.end(Signal::KILL).await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, cancel(9, 1)).await;
    link.stage(9, "done").await;
    let state = link.status(1, "interrupted").await;
    assert_eq!(state["reason"], "daemon_died");
    assert!(!link.told(1).contains(&"cancelled".to_owned()));
    bed.until_logged("job-1 stopped").await;
    assert_eq!(starts(&bed.log(), 1), 1);
}

#[tokio::test]
async fn a_retry_starts_when_the_attempt_before_has_ended_and_never_beside_it() {
    let mut bed = RunBed::new().await;
    let mut link = bed.start().await;
    bed.deliver(&mut link, attempt(1, 1, 1, 1, "WAIT")).await;
    bed.until_logged("job-1 start").await;
    // Another folder: nothing but the rule is in the way.
    bed.deliver(&mut link, attempt(2, 1, 2, 2, "")).await;
    link.status(2, "completed").await;
    assert_eq!(
        bed.log(),
        ["job-1 start", "job-1 stopped", "job-2 start", "job-2 end"]
    );
    // Each speaks about itself.
    assert_eq!(link.results(1)[0]["text"], "partial");
    assert_eq!(link.results(2)[0]["text"], "done");
    assert!(link.told(1).contains(&"cancelled".to_owned()));
}

#[tokio::test]
async fn a_task_at_whose_start_the_daemon_dies_three_times_is_dead_and_a_retry_starts_it() {
    let mut bed = RunBed::new().await;
    // It can be found and never started: each start is a while of trying, in which the daemon dies.
    bed.program("#!/nowhere/to/be/found\n");
    for n in 1..=3 {
        let mut link = bed.start().await;
        if n == 1 {
            bed.deliver(&mut link, task(1, 1, "")).await;
        }
        link.status(1, "running").await;
        bed.end(Signal::KILL).await;
    }
    let mut link = bed.start().await;
    let state = link.status(1, "dead").await;
    assert_eq!(state["reason"], "daemon_died_at_every_start");
    let text = link.results(1)[0]["text"].to_string();
    assert!(text.contains("/retry"), "{text}");
    let told = link.told(1);
    let place = |word: &str| told.iter().rposition(|t| t == word);
    assert!(place("result") < place("dead"), "{told:?}");
    bed.end(Signal::TERM).await;

    bed.program("#!/bin/sh\ncat > /dev/null; echo '{\"type\":\"result\",\"is_error\":false,\"terminal_reason\":\"completed\",\"result\":\"at last\"}'\n");
    let mut link = bed.start().await;
    bed.deliver(&mut link, attempt(2, 1, 2, 1, "")).await;
    link.status(2, "completed").await;
    assert_eq!(link.results(2)[0]["text"], "at last");
}
