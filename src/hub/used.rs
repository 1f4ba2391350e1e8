//! Connect JWTs that were used: each holds once, also over a restart of the hub.
//!
//! An id is remembered until its JWT's time is over, about a minute, in memory and in a file beside the store. It is
//! appended without fsync: what a process wrote outlives the process, however that ended. Only a machine that goes down
//! can lose it. The file therefore names the boot in which it was written; a hub that finds another one (or, beside a
//! store that is not new, none) takes no JWT that may have been used before: none that was signed before its start and
//! the leeway between honest clocks. Who comes in these seconds is told when to come again, who comes with an old JWT is
//! told the time, signs a fresh one and is in.
//!
//! How many there may be is counted for each device alone, because a device on polls signs one for every call: one that
//! signs without end is refused by itself and locks out nobody else. All together are bounded by the devices that the
//! owner enrolled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use super::problem::{ApiError, ApiResult};
use crate::auth::{AuthError, Connect, token::LEEWAY_S};
use crate::domain::{Code, DeviceId, WallMs};

/// Ids of one device within their minute; nearly twice what the limit of its calls lets through.
const PER_DEVICE: usize = 4_096;
/// How often devices that are gone are forgotten, ms.
const SWEEP_MS: i64 = 60_000;
/// Bytes of one entry: the end of its time, Unix ms, and the id.
const ENTRY: usize = 24;
/// Entries over which a file that holds mostly old ones is written anew.
const SLACK: usize = 8_192;

/// See the module.
#[derive(Debug)]
pub(crate) struct UsedTokens {
    state: Mutex<State>,
    /// JWTs signed up to this second are not taken.
    floor_s: Option<i64>,
}

#[derive(Debug)]
struct State {
    seen: BTreeSet<(WallMs, Uuid)>,
    /// When the ids of each device end; those from before a restart are not counted.
    ends: BTreeMap<DeviceId, VecDeque<WallMs>>,
    swept: WallMs,
    path: PathBuf,
    head: String,
    file: File,
    /// Entries in the file.
    entries: usize,
}

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    boot: String,
    floor_s: Option<i64>,
    seen: BTreeSet<(WallMs, Uuid)>,
}

impl Known {
    /// Reads what can be read: the last entry may have been cut by a machine that went down.
    fn parse(bytes: &[u8], now: WallMs) -> Option<Self> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let (boot, floor) = head.rsplit_once(' ')?;
        let entries = bytes[end + 1..].chunks_exact(ENTRY).filter_map(|entry| {
            let (until, jti) = entry.split_first_chunk::<8>()?;
            let jti = Uuid::from_slice(jti).ok()?;
            Some((WallMs(i64::from_be_bytes(*until)), jti))
        });
        Some(Self {
            boot: boot.to_owned(),
            floor_s: floor.parse().ok(),
            seen: entries.filter(|(until, _)| *until >= now).collect(),
        })
    }

    /// The floor of a hub that starts at `now` in this boot; `new` says that the store is new.
    fn floor(known: Option<&Self>, boot: &str, new: bool, now: WallMs) -> Option<i64> {
        match known {
            Some(known) if known.boot == boot => known.floor_s,
            None if new => None,
            _ => Some(seconds(now).saturating_add(LEEWAY_S)),
        }
    }
}

const fn seconds(at: WallMs) -> i64 {
    at.0.div_euclid(1000)
}

impl UsedTokens {
    /// What was used before, from this file; `new` says that the store beside it is new.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub(crate) fn open(path: &Path, new: bool, now: WallMs) -> io::Result<Self> {
        Self::open_in(path, &boot_id(), new, now)
    }

    fn open_in(path: &Path, boot: &str, new: bool, now: WallMs) -> io::Result<Self> {
        let known = match File::open(path) {
            Ok(mut file) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Known::parse(&bytes, now)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let floor_s = Known::floor(known.as_ref(), boot, new, now);
        let head = match floor_s {
            Some(floor) => format!("{boot} {floor}\n"),
            None => format!("{boot} -\n"),
        };
        let seen = known.unwrap_or_default().seen;
        let (file, entries) = (write(path, &head, &seen)?, seen.len());
        let state = State {
            seen,
            ends: BTreeMap::new(),
            swept: now,
            path: path.to_owned(),
            head,
            file,
            entries,
        };
        Ok(Self {
            state: Mutex::new(state),
            floor_s,
        })
    }

    /// Takes a connect JWT that holds otherwise, if it may be the first time.
    pub(crate) fn take(&self, connect: &Connect, now: WallMs) -> ApiResult<()> {
        if let Some(floor) = self.floor_s
            && seconds(connect.issued_at) <= floor
        {
            let left = floor.saturating_sub(seconds(now)).saturating_add(1);
            if left > 0 {
                let left = u64::try_from(left).unwrap_or(1);
                return Err(
                    ApiError::new(Code::GoingAway, "the hub's machine was just started")
                        .retry_after(left),
                );
            }
            let off_s = seconds(connect.issued_at).saturating_sub(seconds(now));
            return Err(AuthError::ClockSkew {
                hub_now: now,
                off_s,
            }
            .into());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.seen.first().is_some_and(|(until, _)| *until < now) {
            state.seen.pop_first();
        }
        let id = (connect.expires_at, connect.jti);
        if state.seen.contains(&id) {
            return Err(
                ApiError::new(Code::TokenUsed, "this connect JWT was used before")
                    .hint("sign a fresh one for every call"),
            );
        }
        if !state.counted(connect, now) {
            return Err(ApiError::new(
                Code::RateLimited,
                "this device used too many connect JWTs within a minute",
            )
            .retry_after(30));
        }
        state.seen.insert(id);
        if let Err(error) = state.note(connect) {
            tracing::warn!(%error, "used connect JWTs are remembered in memory alone");
        }
        Ok(())
    }
}

impl State {
    /// Counts one more of the device's, unless there are too many.
    fn counted(&mut self, connect: &Connect, now: WallMs) -> bool {
        if now.0.saturating_sub(self.swept.0).saturating_abs() >= SWEEP_MS {
            self.swept = now;
            self.ends
                .retain(|_, ends| ends.back().is_some_and(|end| *end >= now));
        }
        let ends = match self.ends.get_mut(&connect.device) {
            Some(ends) => ends,
            None => self.ends.entry(connect.device.clone()).or_default(),
        };
        while ends.front().is_some_and(|end| *end < now) {
            ends.pop_front();
        }
        if ends.len() >= PER_DEVICE {
            return false;
        }
        ends.push_back(connect.expires_at);
        true
    }

    fn note(&mut self, connect: &Connect) -> io::Result<()> {
        if self.entries > SLACK && self.entries > 4 * self.seen.len() {
            self.file = write(&self.path, &self.head, &self.seen)?;
            self.entries = self.seen.len();
            return Ok(());
        }
        self.entries += 1;
        self.file.write_all(&entry(connect.expires_at, connect.jti))
    }
}

fn entry(until: WallMs, jti: Uuid) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&until.0.to_be_bytes());
    bytes[8..].copy_from_slice(jti.as_bytes());
    bytes
}

/// Replaces the file and gives it open for appending.
fn write(path: &Path, head: &str, seen: &BTreeSet<(WallMs, Uuid)>) -> io::Result<File> {
    let mut bytes = head.as_bytes().to_vec();
    for (until, jti) in seen {
        bytes.extend(entry(*until, *jti));
    }
    let new = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&new)?;
    file.write_all(&bytes)?;
    std::fs::rename(&new, path)?;
    Ok(file)
}

/// Names the time since the machine was started; where nothing tells, one time without end.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallMs = WallMs(1_000_000_000);

    fn jwt(n: u128, signed_s: i64) -> Connect {
        let issued_at = NOW.plus(signed_s * 1_000);
        Connect {
            device: DeviceId::new(format!("d{}", n % 4)).unwrap(),
            jti: Uuid::from_u128(n),
            issued_at,
            expires_at: issued_at.plus(65_000),
        }
    }

    fn code(used: &UsedTokens, connect: &Connect, at_s: i64) -> Option<Code> {
        let taken = used.take(connect, NOW.plus(at_s * 1_000));
        taken.err().and_then(|e| e.0.known_code())
    }

    #[test]
    fn a_connect_jwt_holds_once_over_any_number_of_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used");
        let used = UsedTokens::open_in(&path, "boot", true, NOW).unwrap();
        assert_eq!(code(&used, &jwt(1, 0), 0), None);
        for n in 2..5 {
            let used = UsedTokens::open_in(&path, "boot", false, NOW.plus(1_000)).unwrap();
            assert_eq!(code(&used, &jwt(1, 0), 1), Some(Code::TokenUsed));
            assert_eq!(code(&used, &jwt(n, 0), 1), None);
            assert_eq!(code(&used, &jwt(n, 0), 1), Some(Code::TokenUsed));
        }
        // Whose time is over is forgotten: it is refused for that.
        let late = NOW.plus(70_000);
        UsedTokens::open_in(&path, "boot", false, late).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"boot -\n");
    }

    #[test]
    fn after_a_restart_of_the_machine_nothing_is_taken_that_may_have_been_used_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used");
        UsedTokens::open_in(&path, "boot", true, NOW).unwrap();
        let used = UsedTokens::open_in(&path, "another boot", false, NOW).unwrap();
        assert_eq!(code(&used, &jwt(1, 0), 1), Some(Code::GoingAway));
        assert_eq!(code(&used, &jwt(1, 0), LEEWAY_S + 1), Some(Code::ClockSkew));
        assert_eq!(code(&used, &jwt(2, LEEWAY_S + 1), LEEWAY_S + 1), None);
        // A command of the owner before the hub serves changes nothing about that.
        let used = UsedTokens::open_in(&path, "another boot", false, NOW.plus(2_000)).unwrap();
        assert_eq!(code(&used, &jwt(3, 1), LEEWAY_S + 1), Some(Code::ClockSkew));
        // A file that vanished says as little.
        std::fs::remove_file(&path).unwrap();
        let used = UsedTokens::open_in(&path, "another boot", false, NOW).unwrap();
        assert_eq!(code(&used, &jwt(4, 0), 0), Some(Code::GoingAway));
    }

    #[test]
    fn an_entry_that_was_cut_off_and_a_foreign_file_harm_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used");
        let used = UsedTokens::open_in(&path, "boot", true, NOW).unwrap();
        assert_eq!(code(&used, &jwt(1, 0), 0), None);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend([7; ENTRY - 1]);
        std::fs::write(&path, bytes).unwrap();
        let used = UsedTokens::open_in(&path, "boot", false, NOW).unwrap();
        assert_eq!(code(&used, &jwt(1, 0), 0), Some(Code::TokenUsed));
        assert_eq!(code(&used, &jwt(2, 0), 0), None);
        assert_eq!(Known::parse(b"no head", NOW), None);
    }

    #[test]
    fn the_file_is_written_anew_when_it_holds_mostly_what_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("used");
        let used = UsedTokens::open_in(&path, "boot", true, NOW).unwrap();
        for n in 0..=SLACK as u128 {
            assert_eq!(code(&used, &jwt(n, 0), 0), None);
        }
        assert_eq!(code(&used, &jwt(1 << 64, 70), 70), None);
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(size, ("boot -\n".len() + ENTRY) as u64);
        let used = UsedTokens::open_in(&path, "boot", false, NOW.plus(70_000)).unwrap();
        assert_eq!(code(&used, &jwt(1 << 64, 70), 70), Some(Code::TokenUsed));
    }

    #[test]
    fn a_device_that_signs_without_end_locks_out_itself_alone_and_for_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let used = UsedTokens::open_in(&dir.path().join("used"), "boot", true, NOW).unwrap();
        let signed_by = |device: u128, n: usize, at_s| jwt(device + 4 * n as u128, at_s);
        for n in 0..PER_DEVICE {
            assert_eq!(code(&used, &signed_by(1, n, 0), 0), None);
        }
        let more = signed_by(1, PER_DEVICE, 0);
        assert_eq!(code(&used, &more, 0), Some(Code::RateLimited));
        assert_eq!(code(&used, &signed_by(1, 0, 0), 0), Some(Code::TokenUsed));
        assert_eq!(code(&used, &signed_by(2, 0, 0), 0), None);
        assert_eq!(code(&used, &signed_by(1, PER_DEVICE, 66), 66), None);
        let state = used.state.lock().unwrap();
        assert_eq!(state.ends.len(), 1, "who is gone is forgotten");
    }
}
