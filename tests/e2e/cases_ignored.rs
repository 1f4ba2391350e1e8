//! A session that takes mail and shows nothing of it: told as handed over, and offered again only on proof.

use serde_json::json;

use crate::bed::{Bed, stages};
use crate::cases_hand_over::wrap;
use crate::support::interactive::Interactive;
use crate::support::{SOON, marker};

#[tokio::test]
async fn mail_that_a_session_accepted_and_ignored_stays_handed_over_until_a_turn_without_it_has_passed()
 {
    let bed = Bed::start(json!({})).await;
    let folder = bed.home.project("shop");
    bed.enable(&folder).await;
    // The hook has the mail and ends well, and what it said reaches nobody.
    let script = r#"notes=$1; shift
said=$("$@"); code=$?
if [ -n "$said" ] && [ ! -e "$notes/swallowed" ]; then echo x > "$notes/swallowed"; exit 0; fi
printf %s "$said"; exit $code"#;
    wrap(&folder, bed.home.path(), "UserPromptSubmit", script);
    let session = Interactive::start(&bed.home, &folder, &["--allowedTools", "Bash(echo *)"]).await;
    let (turn, marker) = (marker("turn"), marker("message"));
    let body = json!({"project": "shop", "content": marker, "priority": "urgent"});
    let id = bed.post("/messages", &body).await;
    bed.receipt(&id, "on_device").await;

    let gate = bed.api.gate(&turn);
    session
        .type_prompt(&format!(
            "{turn} [[tool:Bash:{{\"command\":\"echo hi\",\"description\":\"greet\"}}]] [[say:finished]]"
        ))
        .await;
    gate.wait_until_held(SOON).await;
    assert!(bed.home.join("swallowed").exists(), "the hook had the mail");
    // The sender sees how far it came, and nothing that is not proven.
    let message = bed.receipt(&id, "handed_over").await;
    let told = stages(&message);
    assert!(!told.iter().any(|s| s == "seen" || s == "done"), "{told:?}");
    assert_eq!(told.iter().filter(|s| *s == "claimed").count(), 1);
    gate.release();
    session.wait_for_turns(1).await;
    // The tool's boundary lay within the turn: no proof yet, and so no second copy.
    let requests = bed.api.main_requests();
    let mut of_turn = requests.iter().filter(|r| r.contains(&turn));
    let after_tool = of_turn.nth(1).expect("a tool ran within the turn");
    assert!(!after_tool.contains(&marker));
    let session_id = session.session_id();

    session.ask(&bed.api, "second").await;
    session.ask(&bed.api, "third").await;
    let message = bed.receipt(&id, "done").await;
    let told = stages(&message);
    let count = |stage: &str| told.iter().filter(|s| *s == stage).count();
    assert_eq!((count("claimed"), count("seen")), (2, 1), "{told:?}");
    assert_eq!(bed.api.count_in_context(&session_id, &marker), 1);
    session.ask(&bed.api, "fourth").await;
    assert_eq!(bed.api.count_in_context(&session_id, &marker), 1);
    assert_eq!(session.exit().await, 0);
}
