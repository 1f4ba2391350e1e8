//! Close codes: why a link ended, as a decision for the device.

/// A WebSocket close code of ours, or one of the standard ones that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CloseCode {
    /// 1000: done.
    Normal,
    /// 1001: this side is stopping.
    GoingAway,
    /// 1012: the hub restarts as planned; come back inside the window it named.
    Restart,
    /// 4400: a frame that cannot be read, or at the wrong time.
    Protocol,
    /// 4401: the credential does not hold, or was not renewed.
    Unauthenticated,
    /// 4403: the device was revoked.
    Forbidden,
    /// 4408: the peer went silent.
    Heartbeat,
    /// 4409: a newer connection of this device took over, or its key is held elsewhere.
    Superseded,
    /// 4413: a frame larger than allowed.
    TooLarge,
    /// 4429: too many frames or connections.
    SlowDown,
}

impl CloseCode {
    /// Every code, for the reference in `proto/`.
    pub const ALL: &'static [Self] = &[
        Self::Normal,
        Self::GoingAway,
        Self::Restart,
        Self::Protocol,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Heartbeat,
        Self::Superseded,
        Self::TooLarge,
        Self::SlowDown,
    ];

    /// The number on the wire.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        match self {
            Self::Normal => 1000,
            Self::GoingAway => 1001,
            Self::Restart => 1012,
            Self::Protocol => 4400,
            Self::Unauthenticated => 4401,
            Self::Forbidden => 4403,
            Self::Heartbeat => 4408,
            Self::Superseded => 4409,
            Self::TooLarge => 4413,
            Self::SlowDown => 4429,
        }
    }

    /// The code with this number; `None` for numbers that this protocol does not use.
    #[must_use]
    pub fn from_u16(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|c| c.as_u16() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_read_back_from_their_numbers() {
        for code in CloseCode::ALL {
            assert_eq!(CloseCode::from_u16(code.as_u16()), Some(*code));
        }
        assert_eq!(CloseCode::from_u16(1006), None);
    }
}
