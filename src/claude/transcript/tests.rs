use std::io::Write as _;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const N: &str = "0b9f2c1e-0000-4000-8000-0000000000aa";

fn watch(lines: &[Value]) -> Watch {
    let mut watch = Watch::new(0, [N.to_owned()]);
    let mut end = 0;
    for line in lines {
        let text = line.to_string();
        end += text.len() as u64 + 1;
        watch.line(Some(text.as_bytes()), end);
    }
    watch
}

fn evidence(line: &Value) -> Option<Evidence> {
    watch(std::slice::from_ref(line))
        .trace(N)
        .and_then(|t| t.seen.clone())
        .map(|s| s.evidence)
}

fn context(event: &str) -> Value {
    let text = format!("mail {N}");
    json!({"type": "attachment", "isSidechain": false, "renderedRole": "system",
        "attachment": {"type": "hook_additional_context", "content": [text], "hookName": event, "hookEvent": event},
        "rendered": [{"content": format!("<system-reminder>\n{event} hook additional context: {text}\n</system-reminder>")}]})
}

fn user(content: &Value, more: &Value) -> Value {
    let mut line = json!({"type": "user", "isSidechain": false, "promptId": "p1",
        "message": {"role": "user", "content": content}});
    for (key, value) in more.as_object().unwrap() {
        line[key] = value.clone();
    }
    line
}

fn assistant(text: &str, stop: &str) -> Value {
    json!({"type": "assistant", "isSidechain": false,
        "message": {"role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": stop}})
}

#[test]
fn what_went_to_the_model_is_evidence() {
    for event in [
        "SessionStart",
        "UserPromptSubmit",
        "PostToolUse:Bash",
        "Stop",
    ] {
        assert_eq!(
            evidence(&context(event)),
            Some(Evidence::Rendered),
            "{event}"
        );
    }
    let text = json!(format!("task {N}"));
    let headless = user(&text, &json!({"promptSource": "sdk", "turnOrigin": "sdk"}));
    assert_eq!(evidence(&headless), Some(Evidence::Prompt));
    let blocks = json!([{"type": "text", "text": text}]);
    assert_eq!(evidence(&user(&blocks, &json!({}))), Some(Evidence::Prompt));
    let peer =
        json!({"isMeta": true, "turnOrigin": "peer", "origin": {"kind": "peer", "msg_id": "m1"}});
    let seen = watch(&[user(&text, &peer)])
        .trace(N)
        .unwrap()
        .seen
        .clone()
        .unwrap();
    assert_eq!(
        (seen.evidence, seen.msg_id.as_deref()),
        (Evidence::Peer, Some("m1"))
    );
    let rewake =
        json!({"origin": {"kind": "task-notification"}, "turnOrigin": "task_notification"});
    assert_eq!(
        evidence(&user(&text, &rewake)),
        Some(Evidence::TaskNotification)
    );
    let queued = json!({"type": "attachment",
        "attachment": {"type": "queued_command", "prompt": text, "origin": {"kind": "peer", "msg_id": "m2"}}});
    assert_eq!(evidence(&queued), Some(Evidence::Peer));
}

#[test]
fn quotes_and_bookkeeping_are_no_evidence() {
    let text = format!("x {N}");
    let sidechain = {
        let mut line = context("PostToolUse:Bash");
        line["isSidechain"] = true.into();
        line
    };
    for line in [
        assistant(&text, "end_turn"),
        json!({"type": "attachment", "attachment": {"type": "hook_success", "stdout": text}}),
        json!({"type": "system", "subtype": "stop_hook_summary", "hookAdditionalContext": [text]}),
        json!({"type": "last-prompt", "lastPrompt": text}),
        json!({"type": "queue-operation", "operation": "enqueue", "content": text}),
        json!({"type": "api-request-blob", "message": {"role": "user", "content": text}}),
        json!({"zz": 1, "type": "api-request", "rendered": text}),
        user(
            &json!([{"type": "tool_result", "content": text}, {"type": "text", "text": text}]),
            &json!({}),
        ),
        user(&json!(text), &json!({"origin": {"kind": "human"}})),
        json!({"type": "attachment", "attachment": {"type": "x", "content": text}, "rendered": [{"content": "other"}]}),
        sidechain,
    ] {
        assert_eq!(evidence(&line), None, "{line}");
    }
}

#[test]
fn a_text_in_the_clis_queue_is_known_to_wait() {
    let watch = watch(&[json!({"type": "queue-operation", "operation": "enqueue", "content": N})]);
    let trace = watch.trace(N).unwrap();
    assert!(trace.enqueued.is_some() && trace.seen.is_none());
}

#[test]
fn turns_begin_at_prompts_and_end_at_answers() {
    let prompt = user(&json!("hi"), &json!({}));
    let result = user(
        &json!([{"type": "tool_result", "content": "x"}]),
        &json!({}),
    );
    let lines = [
        prompt.clone(),
        assistant("", "tool_use"),
        result,
        context("PostToolUse:Bash"),
    ];
    let mut seen = watch(&lines);
    assert_eq!((seen.prompts().count, seen.ends().count), (1, 0));
    assert!(!seen.ended_after(N));
    assert_eq!(seen.answer_after(N), None);
    seen.line(
        Some(assistant("done", "end_turn").to_string().as_bytes()),
        9_000,
    );
    assert!(seen.ended_after(N));
    assert_eq!(seen.answer_after(N), Some("done"));
    let stopped = user(
        &json!([{"type": "text", "text": "[Request interrupted by user]"}]),
        &json!({}),
    );
    let summary = user(&json!("s"), &json!({"isCompactSummary": true}));
    let duration = json!({"type": "system", "subtype": "turn_duration", "durationMs": 3});
    let other = watch(&[prompt, stopped, summary, duration]);
    assert_eq!((other.prompts().count, other.ends().count), (1, 2));
}

/// The line with its place in the conversation.
fn at(mut line: Value, uuid: &str, parent: &str) -> Value {
    (line["uuid"], line["parentUuid"]) = (uuid.into(), parent.into());
    line
}

#[test]
fn what_an_escaped_prompt_brought_along_is_taken_back_by_the_next_prompt() {
    let prompt = |uuid, parent| at(user(&json!("hi"), &json!({})), uuid, parent);
    let mail = || at(context("UserPromptSubmit"), "mail", "prompt");
    let begun = [prompt("prompt", "before"), mail()];
    let note = at(
        json!({"type": "attachment", "attachment": {}}),
        "note",
        "mail",
    );
    let trace = |more: &[Value]| {
        watch(&[&begun[..], more].concat())
            .trace(N)
            .unwrap()
            .clone()
    };

    assert!(trace(std::slice::from_ref(&note)).is_pending());
    let escaped = trace(&[note.clone(), prompt("again", "before")]);
    assert!(escaped.taken_back.is_some() && !escaped.answered);
    // What follows belongs to the other branch.
    let later = trace(&[prompt("again", "before"), assistant("x", "end_turn")]);
    assert!(later.taken_back.is_some() && !later.answered);

    let stays = [
        vec![assistant("x", "tool_use")],
        vec![note.clone(), prompt("next", "note")],
        vec![user(&json!("[Request interrupted by user]"), &json!({}))],
        vec![assistant("x", "end_turn"), prompt("fork", "before")],
    ];
    for lines in stays {
        let kept = trace(&lines);
        assert!(kept.answered && kept.taken_back.is_none(), "{lines:?}");
    }
}

#[test]
fn a_torn_line_waits_and_a_huge_one_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let line = context("Stop").to_string();
    let mut file = File::create(&path).unwrap();
    let huge = "x".repeat(MAX_TRANSCRIPT_LINE + 1);
    write!(file, "{huge}\nno json\n{}", &line[..40]).unwrap();
    let mut seen = Watch::new(0, [N.to_owned()]);
    assert_eq!(follow(&path, &mut seen, u64::MAX).unwrap(), Reach::End);
    assert_eq!(seen.offset(), huge.len() as u64 + 9);
    assert_eq!(seen.skipped(), 2);
    assert_eq!(seen.trace(N), Some(&Trace::default()));
    writeln!(file, "{}", &line[40..]).unwrap();
    assert_eq!(follow(&path, &mut seen, u64::MAX).unwrap(), Reach::End);
    assert!(seen.trace(N).unwrap().seen.is_some());
    File::create(&path).unwrap();
    assert_eq!(follow(&path, &mut seen, u64::MAX).unwrap(), Reach::Replaced);
}

#[test]
fn a_budget_is_kept_and_reading_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let line = user(&json!("hi"), &json!({})).to_string() + "\n";
    std::fs::write(&path, line.repeat(10)).unwrap();
    let mut seen = Watch::new(0, []);
    let mut rounds = 0;
    while follow(&path, &mut seen, 1).unwrap() == Reach::More {
        rounds += 1;
    }
    assert_eq!((rounds, seen.prompts().count), (10, 10));
    assert_eq!(seen.offset(), 10 * line.len() as u64);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm_and_to_the_last_line_break(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
        size in 1usize..9,
    ) {
        let mut lines = LineReader::new(BufReader::with_capacity(size, bytes.as_slice()), 0);
        let mut seen = Watch::new(0, [N.to_owned()]);
        let mut got = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            got.extend_from_slice(line.bytes.unwrap());
            got.push(b'\n');
            prop_assert_eq!(line.end, got.len() as u64);
            seen.line(line.bytes, line.end);
        }
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        prop_assert_eq!(got, bytes[..whole].to_vec());
    }
}
