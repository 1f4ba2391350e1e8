//! From when until when a certificate is valid, read from its DER: the TLS library checks the peer's, not our own.

use std::fmt;

/// A second in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Date {
    year: i64,
    month: i64,
    day: i64,
    second: i64,
}

/// The time of a certificate, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Date,
    pub(super) until: Date,
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Date {
    /// The date of a Unix time: the civil calendar by its 400-year cycle, counted from March so that the leap day is last.
    pub(super) const fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400) + 719_468;
        let cycle = days.div_euclid(146_097);
        let day_of_cycle = days.rem_euclid(146_097);
        let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524
            - day_of_cycle / 146_096)
            / 365;
        let day_of_year =
            day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        let year = year_of_cycle + cycle * 400;
        Self {
            year: if month <= 2 { year + 1 } else { year },
            month,
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
            second: seconds.rem_euclid(86_400),
        }
    }

    /// An ASN.1 time: `YYMMDDHHMMSSZ` (tag 23) or `YYYYMMDDHHMMSSZ` (tag 24).
    fn parse(tag: u8, text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let digits = text.len() == if tag == 23 { 12 } else { 14 };
        if !digits || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let (year, rest) = text.split_at(text.len() - 10);
        let year: i64 = year.parse().ok()?;
        let year = match tag {
            23 if year < 50 => year + 2000,
            23 => year + 1900,
            24 => year,
            _ => return None,
        };
        let two = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
        Some(Self {
            year,
            month: two(0)?,
            day: two(2)?,
            second: two(4)? * 3600 + two(6)? * 60 + two(8)?,
        })
    }
}

impl Validity {
    /// The validity of an X.509 certificate; `None` if these bytes are none.
    pub(super) fn of(der: &[u8]) -> Option<Self> {
        let (0x30, certificate, _) = element(der)? else {
            return None;
        };
        let (0x30, mut fields, _) = element(certificate)? else {
            return None;
        };
        // Version (optional), serial number, signature algorithm, issuer; then the validity.
        if let Some((0xa0, _, rest)) = element(fields) {
            fields = rest;
        }
        for _ in 0..3 {
            (_, _, fields) = element(fields)?;
        }
        let (0x30, times, _) = element(fields)? else {
            return None;
        };
        let (from_tag, from, rest) = element(times)?;
        let (until_tag, until, _) = element(rest)?;
        Some(Self {
            from: Date::parse(from_tag, from)?,
            until: Date::parse(until_tag, until)?,
        })
    }
}

/// The first DER element: tag, content, what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if bytes.len() > 4 {
            return None;
        }
        let length = bytes.iter().fold(0, |n, b| (n << 8) | usize::from(*b));
        (length, rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(Date::from_unix(seconds).to_string(), date);
        }
        let parsed = Date::parse(23, b"240229235959Z").unwrap();
        assert_eq!(parsed, Date::from_unix(1_709_251_199));
        assert_eq!(Date::parse(24, b"20240229235959Z"), Some(parsed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Validity::of(&bytes);
        }
    }
}
