//! The plugin's hooks are the hooks of `enable`.

use std::path::Path;

use remote_collab::claude::settings::{CliVersion, Edit, Spec, enable};
use serde_json::{Value, json};

/// The hooks object with what names an installation taken out.
fn hooks(mut root: Value) -> Value {
    let mut hooks = root["hooks"].take();
    for (_, groups) in hooks.as_object_mut().unwrap() {
        let hook = groups[0]["hooks"][0].as_object_mut().unwrap();
        assert_eq!(hook["args"][0], "hook");
        hook.insert("args".into(), json!(["hook"]));
        hook.insert("command".into(), "remote-collab".into());
    }
    hooks
}

#[test]
fn the_plugin_has_the_same_hooks_as_enable_writes() {
    let version = CliVersion::parse("2.1.332");
    let spec = Spec::new(Path::new("/bin/x"), Path::new("/data"), version, None).unwrap();
    let Edit::Write(written) = enable(None, &spec).unwrap() else {
        panic!("nothing written")
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks/hooks/hooks.json");
    let plugin: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(
        hooks(plugin),
        hooks(serde_json::from_str(&written).unwrap())
    );
}
