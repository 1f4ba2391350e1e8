//! Processes: whether one is still the same, who its parents are, whose it is.
//!
//! A pid alone means nothing once its process may have ended, so a process is always named by pid and start time. The
//! rest of the program sees the trait; each system is one implementation of it, and tests bring their own table.

/// A process as the system shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's number; 0 for none.
    pub parent: u32,
    /// When it started, as the CLI writes it in its registry (Linux: clock ticks since boot, field 22 of `/proc/PID/stat`).
    pub start: String,
    /// The user it acts for.
    pub uid: u32,
    /// Its program's short name.
    pub name: String,
}

/// A look at the system's processes.
pub trait ProcessTable: std::fmt::Debug {
    /// The process of this number, if it lives (a zombie does not).
    fn look(&self, pid: u32) -> Option<Process>;
}

/// How many parents are looked at.
pub const MAX_ANCESTORS: usize = 64;

/// Whether the process of this number is still the one that started then.
#[must_use]
pub fn is_same(table: &dyn ProcessTable, pid: u32, start: &str) -> bool {
    table.look(pid).is_some_and(|p| p.start == start)
}

/// The process, its parent, and so on, at most [`MAX_ANCESTORS`]; empty if the process is gone.
#[must_use]
pub fn ancestors(table: &dyn ProcessTable, pid: u32) -> Vec<Process> {
    let mut line: Vec<Process> = Vec::new();
    let mut next = pid;
    while next != 0 && line.len() < MAX_ANCESTORS && line.iter().all(|p| p.pid != next) {
        let Some(process) = table.look(next) else {
            break;
        };
        next = process.parent;
        line.push(process);
    }
    line
}

/// The processes of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemProcesses;

#[cfg(target_os = "linux")]
impl ProcessTable for SystemProcesses {
    fn look(&self, pid: u32) -> Option<Process> {
        use std::io::Read as _;
        use std::os::unix::fs::MetadataExt as _;
        let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
        let uid = file.metadata().ok()?.uid();
        let mut stat = Vec::with_capacity(512);
        file.by_ref().take(4096).read_to_end(&mut stat).ok()?;
        parse_stat(&String::from_utf8_lossy(&stat), uid)
    }
}

/// Elsewhere nothing is known of processes: no session is taken for live, none of its hooks for proven. A port is one
/// `look` here (macOS: `proc_pidinfo`; Windows: a process snapshot).
#[cfg(not(target_os = "linux"))]
impl ProcessTable for SystemProcesses {
    fn look(&self, _: u32) -> Option<Process> {
        None
    }
}

/// Reads `/proc/PID/stat`. The name stands in parentheses and can hold anything, so the fields are counted from the last one.
#[cfg(any(target_os = "linux", test))]
fn parse_stat(stat: &str, uid: u32) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let mut fields = tail.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    // The state is field 3 and the parent 4, so the start time (22) is 17 further on.
    let start = fields.nth(17)?.to_owned();
    Some(Process {
        pid: pid.trim().parse().ok()?,
        parent,
        start,
        uid,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "4242 (a) R (b) S 17 4242 4242 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 52853 1 1 1";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let process = parse_stat(STAT, 1000).unwrap();
        assert_eq!((process.pid, process.parent), (4242, 17));
        assert_eq!(
            (process.start.as_str(), process.name.as_str()),
            ("52853", "a) R (b")
        );
        assert_eq!(parse_stat(&STAT.replace(") S", ") Z"), 0), None);
        for bad in ["", "1 (x", "x (y) S 1", "1 (x) S"] {
            assert_eq!(parse_stat(bad, 0), None);
        }
    }

    #[derive(Debug)]
    struct Chain(u32);

    impl ProcessTable for Chain {
        fn look(&self, pid: u32) -> Option<Process> {
            (pid <= 1000).then(|| Process {
                pid,
                parent: if pid == self.0 { 1000 } else { pid - 1 },
                start: "1".to_owned(),
                uid: 0,
                name: String::new(),
            })
        }
    }

    #[test]
    fn a_long_or_circular_ancestry_ends() {
        assert_eq!(ancestors(&Chain(0), 1000).len(), MAX_ANCESTORS);
        assert_eq!(ancestors(&Chain(0), 3).len(), 3);
        assert_eq!(ancestors(&Chain(990), 1000).len(), 11);
        assert_eq!(ancestors(&Chain(0), 2000), []);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_alive_and_descends_from_its_parent() {
        let table = SystemProcesses;
        let me = table.look(std::process::id()).unwrap();
        assert!(is_same(&table, me.pid, &me.start));
        assert!(!is_same(&table, me.pid, "1"));
        let line = ancestors(&table, me.pid);
        assert_eq!(line.first(), Some(&me));
        assert_eq!(
            line.get(1).map(|p| p.pid),
            Some(std::os::unix::process::parent_id())
        );
    }
}
