//! Positions in a mailbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::InstanceId;

/// One life of a mailbox store: drawn at random when the store is created or restored; epochs never compare.
pub type Epoch = InstanceId;

/// A place in a mailbox: strictly increasing, not dense, never reused; 0 is before the first envelope.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// A position in one life of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Cursor {
    /// The life of the store that `seq` belongs to.
    pub epoch: Epoch,
    /// The last envelope taken, 0 for none.
    pub seq: Seq,
}

impl PartialOrd for Cursor {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self.epoch == other.epoch).then(|| self.seq.cmp(&other.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_different_epochs_do_not_compare() {
        let a = Cursor {
            epoch: InstanceId::from_u128(1),
            seq: Seq(9),
        };
        let b = Cursor {
            epoch: InstanceId::from_u128(2),
            seq: Seq(3),
        };
        assert_eq!(a.partial_cmp(&b), None);
        assert!(a > Cursor { seq: Seq(8), ..a });
    }
}
