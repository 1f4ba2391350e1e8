//! Where delivery begins on a new connection: the hub decides, the device checks.
//!
//! A cursor means something only inside the epoch that it was taken in. The hub answers a cursor of its present epoch
//! with `continue`, everything else (another epoch, none, one beyond its head) with `reset`: the device then forgets
//! the cursor, keeps its queue, and the ids decide what is new.

use crate::domain::{Cursor, Epoch, Seq};
use crate::wire::Resume;

/// The hub's answer to a `hello` that stands at `last`, and the place after which delivery begins.
pub(crate) fn decide(last: Option<Cursor>, epoch: Epoch, head: Seq) -> (Resume, Seq) {
    match last {
        Some(at) if at.epoch == epoch && at.seq <= head => (Resume::Continue, at.seq),
        _ => (Resume::Reset, Seq(0)),
    }
}

/// What a device makes of the hub's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopt {
    /// Go on after this place.
    Continue(Seq),
    /// Forget the cursor, begin anew in the hub's epoch.
    Reset,
    /// The hub would skip envelopes: it continues a cursor of another epoch.
    Contradiction,
}

/// Checks the hub's answer against the `hello` that stood at `last`.
pub(crate) fn adopt(last: Option<Cursor>, epoch: Epoch, resume: Resume) -> Adopt {
    match (resume, last) {
        (Resume::Continue, Some(at)) if at.epoch == epoch => Adopt::Continue(at.seq),
        (Resume::Continue, Some(_)) => Adopt::Contradiction,
        (Resume::Continue, None) | (Resume::Reset, _) => Adopt::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::InstanceId;

    #[test]
    fn only_a_cursor_of_this_life_and_not_beyond_the_head_is_continued() {
        let (here, there) = (InstanceId::from_u128(1), InstanceId::from_u128(2));
        let at = |epoch, seq| {
            Some(Cursor {
                epoch,
                seq: Seq(seq),
            })
        };
        assert_eq!(
            decide(at(here, 3), here, Seq(9)),
            (Resume::Continue, Seq(3))
        );
        assert_eq!(
            decide(at(here, 9), here, Seq(9)),
            (Resume::Continue, Seq(9))
        );
        for last in [at(here, 10), at(there, 3), None] {
            assert_eq!(decide(last, here, Seq(9)), (Resume::Reset, Seq(0)));
        }
        assert_eq!(
            adopt(at(here, 3), here, Resume::Continue),
            Adopt::Continue(Seq(3))
        );
        assert_eq!(
            adopt(at(there, 3), here, Resume::Continue),
            Adopt::Contradiction
        );
        assert_eq!(adopt(at(there, 3), here, Resume::Reset), Adopt::Reset);
        assert_eq!(adopt(None, here, Resume::Continue), Adopt::Reset);
    }
}
