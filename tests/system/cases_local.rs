//! What goes wrong between a program on this machine and the daemon: repetitions, silence, texts beyond all bounds.

use remote_collab::daemon::clock;
use remote_collab::daemon::store::QueueFilter;
use remote_collab::domain::{Cursor, Epoch, Seq};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::daemon_link::message;
use crate::daemon_local::{Running, running};
use crate::fake_hub::DEADLINE;

/// A POST over loopback under this key: the status line's number and the body.
async fn keyed(run: &Running, path: &str, key: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = run.loopback(&request).await;
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_task_posted_again_under_its_key_is_one_task_and_another_under_it_is_refused() {
    let run = running().await;
    let body = json!({"task": "once", "options": {"max_turns": 3}, "metadata": {"a": [1]}});
    let posts = (0..50).map(|_| keyed(&run, "/tasks", "k1", &body));
    let answers = futures::future::join_all(posts).await;
    assert_eq!(answers[0].0, 202, "{answers:?}");
    assert!(answers.iter().all(|a| a == &answers[0]), "{answers:?}");
    assert_eq!(run.daemon.store().counts().await.unwrap().queued, 1);

    for other in [
        json!({"task": "other"}),
        json!({"task": "once"}),
        json!({"task": "once", "options": {"max_turns": 3}, "metadata": {"a": [1]}, "expires_in_s": 5}),
    ] {
        let (status, problem) = keyed(&run, "/tasks", "k1", &other).await;
        let got = (status, problem["code"].as_str().unwrap());
        assert_eq!(got, (409, "idempotency_mismatch"), "{other}");
    }
    assert_eq!(run.daemon.store().counts().await.unwrap().queued, 1);
    let (_, other) = keyed(&run, "/tasks", "k2", &body).await;
    assert_ne!(other["id"], answers[0].1["id"]);
    let long = "k".repeat(201);
    let (status, problem) = keyed(&run, "/tasks", &long, &body).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid_field")));
    run.daemon.stop().await;
}

#[tokio::test]
async fn messages_pushed_again_under_their_key_are_there_once_also_after_they_were_read() {
    let run = running().await;
    let (path, body) = (
        "/messages/push",
        json!({"messages": [{"content": "a"}, {"content": "b"}]}),
    );
    let (status, first) = keyed(&run, path, "k1", &body).await;
    assert_eq!((status, &first["new"]), (202, &json!(2)));
    let claimed = run.get("/messages").await;
    let confirm = json!({"claim": claimed["claim"]});
    run.post("/messages/confirm", confirm).await;

    let (status, again) = keyed(&run, path, "k1", &body).await;
    assert_eq!((status, &again["ids"]), (202, &first["ids"]));
    assert_eq!(again["new"], 0);
    for other in [
        json!({"messages": [{"content": "a"}]}),
        json!({"messages": [{"content": "b"}, {"content": "a"}]}),
        json!({"messages": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}),
    ] {
        let (status, problem) = keyed(&run, path, "k1", &other).await;
        let got = (status, problem["code"].as_str().unwrap());
        assert_eq!(got, (409, "idempotency_mismatch"), "{other}");
    }
    let counts = run.daemon.store().counts().await.unwrap();
    assert_eq!((counts.queued, counts.terminal), (0, 2));
    run.daemon.stop().await;
}

#[tokio::test]
async fn mail_that_a_program_takes_and_ignores_stays_handed_over_and_its_sender_sees_it_come_back()
{
    let run = running().await;
    let store = run.daemon.store();
    let at = Cursor {
        epoch: Epoch::from_u128(1),
        seq: Seq(1),
    };
    let mut mail = message(7);
    mail.expires_at = clock::wall().plus(3_600_000);
    store.store_envelope(at, mail).await.unwrap();
    let stages = async || {
        let reports = store.reports_after(0, 100).await.unwrap();
        let stage = |b: &Value| b["stage"].as_str().map(str::to_owned);
        reports
            .iter()
            .filter_map(|r| stage(&r.body))
            .collect::<Vec<_>>()
    };
    let taken = run.get("/messages").await;
    assert_eq!(taken["messages"][0]["content"], "hi");
    assert_eq!(stages().await.last().unwrap(), "handed_over");
    // As long as the program may still be at it, nobody else gets it.
    let version = *store.version().borrow();
    assert_eq!(run.get("/messages").await["messages"], json!([]));
    assert_eq!(*store.version().borrow(), version);

    let mut claim = store.open_claims().await.unwrap().remove(0);
    claim.lease_until = clock::wall();
    store
        .update_claim(claim, vec![], vec![], vec![])
        .await
        .unwrap();
    let mut version = store.version();
    let back = async {
        while store
            .queued(QueueFilter::default(), 10)
            .await
            .unwrap()
            .is_empty()
        {
            version.changed().await.unwrap();
        }
    };
    timeout(DEADLINE, back).await.unwrap();
    let told = stages().await;
    assert!(!told.iter().any(|s| s == "seen" || s == "done"), "{told:?}");

    let again = run.get("/messages").await;
    let confirm = json!({"claim": again["claim"]});
    run.post("/messages/confirm", confirm).await;
    let told = stages().await;
    let count = |stage: &str| told.iter().filter(|s| *s == stage).count();
    assert_eq!((count("claimed"), count("handed_over")), (2, 2), "{told:?}");
    assert_eq!((count("seen"), count("done")), (1, 1), "{told:?}");
    run.daemon.stop().await;
}

#[tokio::test]
async fn a_text_that_no_run_could_read_is_refused_by_the_local_api_and_the_daemon_serves_on() {
    let run = running().await;
    // The CLI reads ten megabytes from its standard input and no more.
    let text = "x".repeat((10 << 20) + 1);
    for (path, body) in [
        ("/tasks", json!({"task": text})),
        ("/messages/push", json!({"messages": [{"content": text}]})),
    ] {
        let (status, problem) = run.call("POST", path, body).await;
        let got = (status, problem["code"].as_str().unwrap());
        assert_eq!(got, (413, "too_large"), "{path}");
    }
    assert_eq!(run.daemon.store().counts().await.unwrap().queued, 0);
    let fits = "文".repeat((256 << 10) / 3);
    run.post("/tasks", json!({"task": fits})).await;
    run.daemon.stop().await;
}
