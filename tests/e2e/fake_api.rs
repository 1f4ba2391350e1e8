//! What the scripted API promises to whoever speaks HTTP with it, without the CLI.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::SOON;
use crate::support::fake_anthropic::{FakeAnthropic, Kind, Place, Reply};

/// Sends one request and returns the whole answer; an empty body sends none.
async fn send(api: &FakeAnthropic, method: &str, path: &str, body: &str) -> String {
    let host = api.url().replace("http://", "");
    let mut stream = TcpStream::connect(&host)
        .await
        .expect("the scripted API listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-api-key: secret\r\n\
         x-claude-code-session-id: s-1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the scripted API reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("the scripted API answers");
    answer
}

/// Sends a step of a conversation and returns the status and the decoded answer.
async fn step(api: &FakeAnthropic, messages: Value) -> (String, Value) {
    let body = json!({"model": "m", "tools": [{"name": "T"}], "messages": messages}).to_string();
    let answer = send(api, "POST", "/v1/messages?beta=true", &body).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    (
        status,
        serde_json::from_str(body).expect("an answer of JSON"),
    )
}

/// A turn so far: the prompt, and after each use of a tool its result.
fn turn(prompt: &str, tools_used: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": [{"type": "text", "text": prompt}]})];
    for n in 0..tools_used {
        let used = json!({"type": "tool_use", "id": n.to_string(), "name": "T", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": n.to_string(),
            "content": "[[say:not this]]"});
        messages.push(json!({"role": "assistant", "content": [used]}));
        messages.push(json!({"role": "user", "content": [result]}));
    }
    messages.into()
}

#[tokio::test]
async fn each_endpoint_of_the_api_answers_as_the_real_one_does() {
    let api = FakeAnthropic::start();
    for (method, path, body, status, kind) in [
        ("HEAD", "/", "", "200", Kind::Other),
        ("GET", "/v1/models?limit=1", "", "200", Kind::Other),
        ("GET", "/v1/nothing", "", "404", Kind::Other),
        (
            "POST",
            "/v1/messages/count_tokens?beta=true",
            "{}",
            "200",
            Kind::Count,
        ),
        (
            "POST",
            "/v1/messages",
            r#"{"model":"m","messages":[]}"#,
            "200",
            Kind::Side,
        ),
    ] {
        let answer = send(&api, method, path, body).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{method} {path}: {answer}"
        );
        let logged = api.requests().pop().expect("it is in the log");
        assert_eq!((logged.kind, logged.path.as_str()), (kind, path));
    }
}

#[tokio::test]
async fn directives_of_a_prompt_are_followed_one_step_at_a_time() {
    let api = FakeAnthropic::start();
    let prompt = r#"[[tool:A:{"x":"]]"}]] then [[tool:B:{"y":[1]}]] [[say:done]] [[usage:777]]"#;

    let (_, first) = step(&api, turn(prompt, 0)).await;
    assert_eq!(first["content"][0]["name"], "A");
    assert_eq!(first["content"][0]["input"], json!({"x": "]]"}));
    assert_eq!(first["stop_reason"], "tool_use");
    let (_, second) = step(&api, turn(prompt, 1)).await;
    assert_eq!(second["content"][0]["input"], json!({"y": [1]}));
    let (_, last) = step(&api, turn(prompt, 2)).await;
    assert_eq!(last["content"][0]["text"], "done");
    assert_eq!(
        (&last["stop_reason"], &last["usage"]["input_tokens"]),
        (&json!("end_turn"), &json!(777))
    );
}

#[tokio::test]
async fn directives_of_an_earlier_turn_or_of_a_tool_direct_nothing() {
    let api = FakeAnthropic::start();
    let mut messages = turn("[[say:old]]", 1);
    let all = messages
        .as_array_mut()
        .expect("a turn is a list of messages");
    all.push(json!({"role": "assistant", "content": [{"type": "text", "text": "old"}]}));
    all.push(json!({"role": "user", "content": "and now?"}));
    all.push(json!({"role": "system", "content": "[[say:nor this]]"}));

    let (_, answer) = step(&api, messages).await;
    assert_eq!(answer["content"][0]["text"], "Answer 1.");
}

#[tokio::test]
async fn counted_error_ends_and_an_uncounted_one_stays() {
    let api = FakeAnthropic::start();
    for status in ["429", "429", "200"] {
        assert_eq!(step(&api, turn("[[error:429*2]]", 0)).await.0, status);
    }
    for _ in 0..3 {
        let (status, answer) = step(&api, turn("[[error:401]]", 0)).await;
        assert_eq!(
            (status.as_str(), &answer["error"]["type"]),
            ("401", &json!("authentication_error"))
        );
    }
}

#[tokio::test]
async fn script_decides_first_and_may_pass() {
    let api = FakeAnthropic::start();
    api.script(|request| {
        request
            .contains("limit")
            .then(|| Reply::error(429).header("retry-after", "7"))
    });

    let body = json!({"tools": [{}], "messages": turn("limit", 0)}).to_string();
    let limited = send(&api, "POST", "/v1/messages", &body).await;
    assert!(limited.contains("retry-after: 7\r\n"), "{limited}");
    assert_eq!(
        step(&api, turn("[[say:passed]]", 0)).await.1["content"][0]["text"],
        "passed"
    );
}

#[tokio::test]
async fn streamed_answer_is_the_same_message_in_events() {
    let api = FakeAnthropic::start();
    let body = json!({"stream": true, "tools": [{}], "messages": turn("[[say:in pieces]]", 0)});
    let answer = send(&api, "POST", "/v1/messages", &body.to_string()).await;

    assert!(
        answer.contains("content-type: text/event-stream"),
        "{answer}"
    );
    let names: Vec<_> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert!(answer.contains(r#""text":"in pieces""#), "{answer}");
}

#[tokio::test]
async fn gate_holds_only_what_carries_its_marker() {
    let api = FakeAnthropic::start();
    let gate = api.gate("held");

    let held = step(&api, turn("held [[say:late]]", 0));
    let free = async {
        gate.wait_until_held(SOON).await;
        let (_, free) = step(&api, turn("[[say:at once]]", 0)).await;
        assert_eq!(free["content"][0]["text"], "at once");
        gate.release();
    };
    let ((_, late), ()) = tokio::join!(held, free);
    assert_eq!(late["content"][0]["text"], "late");
}

#[tokio::test]
async fn log_keeps_texts_by_place_and_no_key() {
    let api = FakeAnthropic::start();
    let mut messages = turn("the prompt", 1);
    let all = messages
        .as_array_mut()
        .expect("a turn is a list of messages");
    all.push(json!({"role": "system", "content": [{"type": "text", "text": "from a hook: seen"}]}));
    step(&api, messages).await;

    let logged = api.last_main("s-1").expect("the step is in the log");
    assert_eq!(logged.newest_user_text(), "the prompt");
    assert_eq!(logged.texts(Place::MidSystem), ["from a hook: seen"]);
    assert_eq!(logged.texts(Place::ToolResult), ["[[say:not this]]"]);
    assert_eq!(api.count_in_context("s-1", "seen"), 1);
    assert!(!format!("{logged:?}").contains("secret"));
}

#[tokio::test]
#[should_panic(expected = "no such request within")]
async fn wait_for_a_request_that_never_comes_ends_with_the_log() {
    let api = FakeAnthropic::start();
    api.wait_for(|_| false, Duration::from_millis(10)).await;
}

#[tokio::test]
async fn dropped_api_is_away() {
    let api = FakeAnthropic::start();
    let host = api.url().replace("http://", "");
    let mut open = TcpStream::connect(&host)
        .await
        .expect("the scripted API listens");

    drop(api);
    assert_eq!(
        open.read(&mut [0; 1]).await.unwrap_or(0),
        0,
        "an open connection breaks off"
    );
    assert!(
        TcpStream::connect(&host).await.is_err(),
        "the port is closed"
    );
}
