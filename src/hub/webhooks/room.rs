//! Room for calls: some in all, fewer of one account, a few to one host; pure. Receivers that hang so hold up their own
//! account and host, and nobody else.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;

/// Calls under way: in all, of one account, to one host.
const IN_ALL: usize = 32;
const PER_ACCOUNT: usize = 16;
const PER_HOST: usize = 4;

/// Whose the calls under way are.
#[derive(Debug, Default)]
pub(super) struct Room {
    all: usize,
    accounts: BTreeMap<String, usize>,
    hosts: BTreeMap<String, usize>,
}

impl Room {
    /// Takes a place for a call of this account to this host, if there is one.
    pub(super) fn take(&mut self, account: &str, host: &str) -> bool {
        let of =
            |taken: &BTreeMap<String, usize>, name: &str| taken.get(name).copied().unwrap_or(0);
        let full = self.all >= IN_ALL
            || of(&self.accounts, account) >= PER_ACCOUNT
            || of(&self.hosts, host) >= PER_HOST;
        if !full {
            self.all += 1;
            *self.accounts.entry(account.to_owned()).or_default() += 1;
            *self.hosts.entry(host.to_owned()).or_default() += 1;
        }
        !full
    }

    /// Gives the place of a call that has ended back.
    pub(super) fn give(&mut self, account: &str, host: &str) {
        self.all = self.all.saturating_sub(1);
        for (taken, name) in [(&mut self.accounts, account), (&mut self.hosts, host)] {
            if let Some(n) = taken.get_mut(name) {
                *n = n.saturating_sub(1);
                if *n == 0 {
                    taken.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_with_any_number_of_hanging_hosts_leaves_room_for_the_others() {
        let mut room = Room::default();
        let taken = (0..1_000)
            .filter(|n| room.take("a", &format!("h{n}")))
            .count();
        assert_eq!(taken, PER_ACCOUNT);
        assert!(room.take("b", "other"));
        room.give("a", "h0");
        assert!(room.take("a", "h1000") && !room.take("a", "h1001"));
    }

    #[test]
    fn one_host_and_all_together_are_bounded_and_what_ended_makes_room() {
        let mut room = Room::default();
        let taken = (0..10).filter(|n| room.take(&format!("a{n}"), "h")).count();
        assert_eq!(taken, PER_HOST);
        for _ in 0..PER_HOST {
            room.give("a0", "h");
        }
        assert!(room.take("a9", "h"));
        room.give("a9", "h");
        let mut room = Room::default();
        let taken = (0..1_000)
            .filter(|n| room.take(&format!("a{n}"), &format!("h{n}")))
            .count();
        assert_eq!(taken, IN_ALL);
    }
}
