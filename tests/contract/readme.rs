//! What the README promises about configuration and commands is what the code has.

use std::path::Path;

use remote_collab::config::KEYS;

fn readme() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn the_readme_lists_every_key_with_its_default_and_no_other() {
    let text = readme();
    let mut listed: Vec<_> = text
        .lines()
        .filter(|l| l.starts_with("| `") && l.matches('|').count() >= 4)
        .collect();
    for key in KEYS {
        let row = format!("| `{}` | `{}` | {} |", key.path, key.default, key.meaning);
        assert!(listed.contains(&row.as_str()), "missing: {row}");
        listed.retain(|l| *l != row);
    }
    assert!(listed.is_empty(), "not in the code: {listed:?}");
}
