//! Sessions that change under the mail: cleared, compacted, interrupted, several at once, with subagents, and one-shot.

use reqwest::Method;
use serde_json::json;

use crate::bed::{Bed, stages};
use crate::support::fake_anthropic::{Kind, Reply};
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

#[tokio::test]
async fn mail_for_a_cleared_session_reaches_its_successor() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "hello").await;
    let old = session.session_id();
    bed.until("the hub knows it", Method::GET, "/sessions", |v| {
        v.to_string().contains(&old)
    })
    .await;
    let (before, after) = (marker("before"), marker("after"));
    let body = |text: &str| json!({"session_id": old, "content": text});
    let first = bed.post("/messages", &body(&before)).await;
    bed.receipt(&first, "on_device").await;

    session.type_prompt("/clear").await;
    let pid = session.pid();
    let new = bed
        .home
        .wait_for_live(|s| s.pid() == pid && s.session_id() != old, SOON)
        .await;
    let new = new.session_id().to_owned();
    let second = bed.post("/messages", &body(&after)).await;
    bed.receipt(&second, "on_device").await;
    session.ask(&bed.api, "what is new?").await;

    for (id, marker) in [(&first, &before), (&second, &after)] {
        let message = bed.receipt(id, "done").await;
        let seen = message["receipts"].as_array().into_iter().flatten();
        let seen: Vec<_> = seen.filter(|r| r["stage"] == "seen").collect();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0]["evidence"]["session_id"], new.as_str());
        assert_eq!(bed.api.count_in_context(&new, marker), 1);
    }
    let sessions = bed.call(Method::GET, "/sessions", None).await;
    let known = sessions["sessions"].as_array().expect("a list");
    let known = known.iter().find(|s| s["session_id"] == new.as_str());
    assert_eq!(known.expect("the successor")["lineage"], json!([old]));
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn mail_that_comes_during_a_compaction_arrives_once_and_memory_is_told_anew() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let summary = marker("summary");
    let path = format!("/memory/{}", uuid::Uuid::new_v4());
    let memory = json!({"project": "shop", "summary": summary, "context": []});
    bed.call(Method::POST, &path, Some(&memory)).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "hello").await;
    session.ask(&bed.api, "and again").await;
    let gate = bed.api.gate("Respond with TEXT ONLY");
    session.type_prompt("/compact").await;
    gate.wait_until_held(SOON).await;
    let (urgent, normal) = (marker("urgent"), marker("normal"));
    let mut ids = Vec::new();
    for (text, priority) in [(&urgent, "urgent"), (&normal, "normal")] {
        let body = json!({"project": "shop", "content": text, "priority": priority});
        ids.push(bed.post("/messages", &body).await);
    }
    for id in &ids {
        bed.receipt(id, "on_device").await;
    }
    gate.release();
    session.wait_for_text("Compacted", SOON).await;

    session.ask(&bed.api, "what is new?").await;
    for id in &ids {
        let message = bed.receipt(id, "done").await;
        assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    }
    let id = session.session_id();
    for marker in [&urgent, &normal, &summary] {
        assert_eq!(bed.api.count_in_context(&id, marker), 1, "{marker}");
    }
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn mail_of_an_interrupted_turn_is_in_the_context_of_the_next_once() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "hello").await;
    let (turn, marker) = (marker("turn"), marker("message"));
    let body = json!({"project": "shop", "content": marker});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;
    let gate = bed.api.gate(&turn);
    session.type_prompt(&turn).await;
    gate.wait_until_held(SOON).await;
    session.terminal().send_keys(&["Escape"]).await;
    session.wait_for_status("idle", SOON).await;
    gate.release();
    // The CLI may have put the prompt back into its box.
    session.terminal().send_keys(&["C-u"]).await;
    session.ask(&bed.api, "what is new?").await;
    session.ask(&bed.api, "and now?").await;

    let message = bed.receipt(&id, "done").await;
    assert_eq!(stages(&message).iter().filter(|s| *s == "seen").count(), 1);
    assert_eq!(bed.api.count_in_context(&session.session_id(), &marker), 1);
    session.hang_up().await;
}

#[tokio::test]
async fn of_two_sessions_in_a_project_each_message_reaches_exactly_one() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let one = Interactive::start(&bed.home, &folder, &[]).await;
    one.ask(&bed.api, "hello one").await;
    let two = Interactive::start(&bed.home, &folder, &[]).await;
    two.ask(&bed.api, "hello two").await;
    let (first, second) = (one.session_id(), two.session_id());
    bed.until("the hub knows both", Method::GET, "/sessions", |v| {
        v.to_string().contains(&first) && v.to_string().contains(&second)
    })
    .await;
    let (any, named) = (marker("any"), marker("named"));
    let body = json!({"project": "shop", "content": any});
    let to_any = bed.post("/messages", &body).await;
    let body = json!({"session_id": first, "content": named});
    let to_first = bed.post("/messages", &body).await;
    bed.receipt(&to_any, "on_device").await;
    bed.receipt(&to_first, "on_device").await;

    two.ask(&bed.api, "news for two?").await;
    one.ask(&bed.api, "news for one?").await;
    bed.receipt(&to_any, "done").await;
    bed.receipt(&to_first, "done").await;
    let count = |marker| [&first, &second].map(|id| bed.api.count_in_context(id, marker));
    assert_eq!(count(&named), [1, 0]);
    assert_eq!(count(&any).iter().sum::<usize>(), 1, "one of them");
    assert_eq!(one.exit().await, 0);
    assert_eq!(two.exit().await, 0);
}

#[tokio::test]
async fn a_subagents_tools_do_not_swallow_the_mail_of_its_session() {
    let mut bed = Bed::start(json!({})).await;
    // The session waits for its agent.
    bed.home.set("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1");
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let args = ["--allowedTools", "Bash(echo *)", "Agent", "Task"];
    let session = Interactive::start(&bed.home, &folder, &args).await;
    let (turn, work, urgent) = (marker("turn"), marker("work"), marker("urgent"));
    bed.api.script({
        let (turn, work) = (turn.clone(), work.clone());
        let (mut sent, mut echoes) = (false, 0);
        move |request| {
            if request.is_subagent() {
                if echoes == 2 {
                    return Some(Reply::say("the agent is done"));
                }
                echoes += 1;
                let input = json!({"command": format!("echo {echoes}"), "description": "count"});
                return Some(Reply::tool("Bash", input));
            }
            if !sent && request.contains(&turn) {
                sent = true;
                let input = json!({
                    "description": "work", "prompt": work, "subagent_type": "general-purpose",
                });
                return Some(Reply::tool("Agent", input));
            }
            None
        }
    });
    let gate = bed.api.gate(&work);
    session.type_prompt(&turn).await;
    gate.wait_until_held(SOON).await;
    let body = json!({"project": "shop", "content": urgent, "priority": "urgent"});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;
    gate.release();

    bed.receipt(&id, "done").await;
    assert_eq!(bed.api.count_in_context(&session.session_id(), &urgent), 1);
    let requests = bed.api.requests();
    let agents: Vec<_> = requests
        .iter()
        .filter(|r| r.kind == Kind::Main && r.is_subagent())
        .collect();
    let digests: Vec<_> = requests.iter().map(|r| r.digest()).collect();
    assert_eq!(agents.len(), 3, "the agent used its tools: {digests:#?}");
    assert!(agents.iter().all(|r| !r.contains(&urgent)));
    assert_eq!(session.exit().await, 0);
}

#[tokio::test]
async fn a_one_shot_run_of_the_user_gets_memory_and_takes_no_mail_also_beside_a_run_of_ours() {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    let (summary, mail, task) = (marker("summary"), marker("mail"), marker("task"));
    let path = format!("/memory/{}", uuid::Uuid::new_v4());
    let memory = json!({"project": "shop", "summary": summary, "context": []});
    bed.call(Method::POST, &path, Some(&memory)).await;
    let gate = bed.api.gate(&task);
    let body = json!({"project": "shop", "task": format!("{task} [[say:ours]]")});
    let ours = bed.post("/tasks", &body).await;
    gate.wait_until_held(SOON).await;
    let body = json!({"project": "shop", "content": mail, "priority": "urgent"});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;

    let tool = r#"[[tool:Bash:{"command":"echo hi","description":"greet"}]]"#;
    let args = ["--allowedTools", "Bash(echo *)"];
    let said = bed
        .home
        .print_json(&folder, &args, &format!("mine {tool}"))
        .await;
    let user = said["session_id"].as_str().expect("a session");
    gate.release();
    let task = bed.task(&ours, "completed").await;
    let run = task["result"]["session_id"].as_str().expect("a session");
    for session in [user, run] {
        assert_eq!(bed.api.count_in_context(session, &summary), 1);
        assert_eq!(bed.api.count_in_context(session, &mail), 0);
    }

    // It waited for a session that a person sits at.
    let session = Interactive::start(&bed.home, &folder, &[]).await;
    session.ask(&bed.api, "what is new?").await;
    bed.receipt(&id, "done").await;
    assert_eq!(bed.api.count_in_context(&session.session_id(), &mail), 1);
    assert_eq!(session.exit().await, 0);
}
