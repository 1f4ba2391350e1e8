use super::*;

const NOW: WallMs = WallMs(1_796_054_594_000);

fn write(text: &str) -> impl FnMut(Option<&str>) -> Result<Edit, SettingsError> {
    let text = text.to_owned();
    move |_| Ok(Edit::Write(text.clone()))
}

#[test]
fn a_date_reads_as_one() {
    assert_eq!(stamp(NOW), "20261130T160314Z");
    assert_eq!(stamp(WallMs(951_782_400_000)), "20000229T000000Z");
}

#[test]
fn a_missing_file_is_made_with_its_folder_and_can_go_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".claude/settings.local.json");
    let applied = apply(&path, None, NOW, write("{}")).unwrap();
    assert_eq!(
        (applied.backup, fs::read_to_string(&path).unwrap()),
        (None, "{}".to_owned())
    );
    apply(&path, None, NOW, |_| Ok(Edit::Remove)).unwrap();
    assert!(!path.exists());
}

#[test]
fn what_stood_there_is_kept_by_date() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.json");
    fs::write(&path, "old").unwrap();
    let backups = dir.path().join("backups");
    for i in 0..15 {
        let now = WallMs(NOW.0 + i * 1000);
        let applied = apply(&path, Some(&backups), now, write(&i.to_string())).unwrap();
        if i == 0 {
            assert_eq!(fs::read_to_string(applied.backup.unwrap()).unwrap(), "old");
        }
    }
    assert_eq!(fs::read_dir(backups).unwrap().count(), MAX_BACKUPS);
}

#[test]
fn a_concurrent_writer_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.json");
    fs::write(&path, "0").unwrap();
    let mut rounds = 0;
    apply(&path, None, NOW, |seen| {
        let seen = seen.unwrap().to_owned();
        rounds += 1;
        if rounds < 3 {
            fs::write(&path, format!("other{rounds}")).unwrap();
        }
        Ok(Edit::Write(format!("{seen}+ours")))
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "other2+ours");
    let mut n = 0;
    let error = apply(&path, None, NOW, |_| {
        n += 1;
        fs::write(&path, format!("busy{n}")).unwrap();
        Ok(Edit::Write("ours".to_owned()))
    });
    assert!(matches!(error, Err(FileError::Contended { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "busy5");
}

#[test]
fn a_file_that_appears_meanwhile_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.json");
    apply(&path, None, NOW, |seen| {
        if seen.is_none() {
            fs::write(&path, "theirs").unwrap();
        }
        Ok(Edit::Write(format!("{}+ours", seen.unwrap_or_default())))
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs+ours");
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_modes_stay() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("dotfiles.json");
    fs::write(&real, "a").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let link = dir.path().join("settings.json");
    symlink("dotfiles.json", &link).unwrap();
    apply(&link, None, NOW, write("b")).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&real).unwrap(), "b");
    assert_eq!(
        fs::metadata(&real).unwrap().permissions().mode() & 0o777,
        0o640
    );
    let circle = dir.path().join("circle");
    symlink("circle", &circle).unwrap();
    assert!(apply(&circle, None, NOW, write("x")).is_err());
}

#[cfg(unix)]
#[test]
fn a_read_only_file_and_a_damaged_one_stay_as_they_are() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.json");
    fs::write(&path, "a").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let error = apply(&path, None, NOW, write("b")).unwrap_err();
    assert!(matches!(error, FileError::ReadOnly { .. }), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, b"\xff\xfe{}").unwrap();
    let error = apply(&path, None, NOW, write("b")).unwrap_err();
    assert!(matches!(error, FileError::Unreadable { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"\xff\xfe{}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_written_in_the_last_instant_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.json");
    fs::write(&path, "theirs, just now").unwrap();
    let mut new = new_file(dir.path()).unwrap();
    new.write_all(b"ours").unwrap();
    assert!(!swap(new, &path, "what was read").unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs, just now");
    let mut new = new_file(dir.path()).unwrap();
    new.write_all(b"ours").unwrap();
    assert!(swap(new, &path, "theirs, just now").unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
