//! The requests that `up` prints, and words for a shell to paste.
//!
//! A request reads the token from its file, so that the token is in no history and no process list.

use std::path::Path;

use serde_json::{Value, json};

use crate::local::Places;

/// What stands in a request for a project that is not there yet.
const NO_PROJECT: &str = "PROJECT";

/// The requests to try with the hub at `hub`: a task and a message for `project`, and what became of them.
pub(super) fn requests(hub: &str, token: &Path, project: Option<&str>) -> String {
    let note = match project {
        Some(_) => "",
        None => {
            "\nPROJECT stands for a project's name: once one is enabled, these lines come again with it.\n"
        }
    };
    let project = project.unwrap_or(NO_PROJECT);
    let task = json!({"project": project, "task": "Say hello and list the files here."});
    let message = json!({"project": project, "content": "The build is green."});
    format!(
        "{note}\nA task (runs Claude Code in the project):\n{}\n\n\
         A message (Claude reads it with the next prompt in the project's open session):\n{}\n\n\
         What became of it (ID from the answer; for a message /messages/ID):\n  \
         curl -sS {hub}/tasks/ID -H \"Authorization: Bearer $(cat {})\"\n",
        post(hub, "tasks", token, &task),
        post(hub, "messages", token, &message),
        shell_word(token),
    )
}

fn post(hub: &str, path: &str, token: &Path, body: &Value) -> String {
    let body = body.to_string().replace('\'', "'\\''");
    format!(
        "  curl -sS {hub}/{path} -H \"Authorization: Bearer $(cat {})\" -H 'Content-Type: application/json' -d '{body}'",
        shell_word(token)
    )
}

/// A path as one word of a shell, also within double quotes' `$(…)`.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// This program, as a shell finds it from any folder.
pub(super) fn own_name() -> String {
    std::env::current_exe().map_or_else(|_| "remote-collab".to_owned(), |p| shell_word(&p))
}

/// The flag that names this installation, with a space before it; empty for the default one.
pub(super) fn data_dir_flag(places: &Places) -> String {
    let default = Places::resolve(None, &|name| match name {
        "REMOTE_COLLAB_DATA_DIR" => None,
        other => crate::local::process_env(other),
    });
    match default {
        Ok(default) if default.root() == places.root() => String::new(),
        _ => format!(" --data-dir {}", shell_word(places.root())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pasted_curl_quotes_what_a_shell_would_read() {
        let line = post(
            "http://h",
            "tasks",
            Path::new("/a b/t"),
            &json!({"task": "don't"}),
        );
        assert!(line.contains("$(cat '/a b/t')"), "{line}");
        assert!(line.contains(r#"don'\''t"#), "{line}");
    }

    #[test]
    fn without_a_project_the_requests_say_what_stands_for_it() {
        let token = Path::new("/t");
        let none = requests("http://h", token, None);
        assert!(none.contains("PROJECT stands for"), "{none}");
        let one = requests("http://h", token, Some("shop"));
        assert!(!one.contains("PROJECT"), "{one}");
        assert_eq!(one.matches(r#""project":"shop""#).count(), 2, "{one}");
    }
}
