//! `runs.env_file`: variables of the user's own for the processes of runs.

use std::ffi::OsString;
use std::path::Path;

/// Reads `NAME=value` lines from a file that only its owner can read; `#` begins a comment line.
pub(super) fn read(path: &Path) -> Result<Vec<(OsString, OsString)>, String> {
    let told = |e: &dyn std::fmt::Display| format!("runs.env_file `{}`: {e}", path.display());
    let file = std::fs::File::open(path).map_err(|e| told(&e))?;
    crate::auth::keys::check_private(&file, path).map_err(|e| told(&e))?;
    let text = std::io::read_to_string(file).map_err(|e| told(&e))?;
    let mut vars = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line itself may hold a secret and is not repeated.
        let (name, value) = line
            .strip_prefix("export ")
            .unwrap_or(line)
            .split_once('=')
            .filter(|(n, _)| {
                !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            })
            .ok_or_else(|| told(&format!("line {} is not NAME=value", i + 1)))?;
        vars.push((name.into(), value.into()));
    }
    Ok(vars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_env_file_that_others_can_read_is_refused_and_its_lines_stay_secret() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write("# c\nexport A=1\nB=x=y\n\n", 0o600);
        assert_eq!(
            read(&path).unwrap(),
            [("A".into(), "1".into()), ("B".into(), "x=y".into())]
        );
        write("A=1\n", 0o644);
        assert!(read(&path).is_err());
        write("s3cret\n", 0o600);
        let error = read(&path).unwrap_err();
        assert!(
            error.contains("line 1") && !error.contains("s3cret"),
            "{error}"
        );
    }
}
