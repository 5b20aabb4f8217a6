//! Calendars: where days, weeks and months begin in a time zone.
//!
//! ```text
//!   calendar-day@Europe/Berlin     …  2026-03-28T23:00Z   2026-03-29T22:00Z   2026-03-30T22:00Z  …
//!                                              └── 23 hours ──┘
//! ```
//!
//! The core counts between boundaries, and does not know time zones. This module computes the boundaries, from the period
//! before the current one to two years ahead. The owner of a policy renews them daily. A day begins at its first instant
//! that exists.
use crate::model::rate::CalendarUnit;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp as Instant, ToSpan};
use tidegate_core::{Calendar, Timestamp};

/// Two years, in days.
const DAYS_AHEAD: i64 = 731;

/// Whether a time zone with this name exists.
pub(crate) fn exists(name: Option<&str>) -> bool {
    zone(name).is_some()
}

/// The boundaries around an instant; `None` if it is outside the range of dates, or the zone does not exist.
pub(crate) fn calendar(
    unit: CalendarUnit,
    zone_name: Option<&str>,
    now: Timestamp,
) -> Option<Calendar> {
    let zone = zone(zone_name)?;
    let nanos = i128::from(now.as_nanos());
    let today = Instant::from_nanosecond(nanos).ok()?.to_zoned(zone.clone()).date();
    let last = today.checked_add(DAYS_AHEAD.days()).ok()?;
    let mut date = previous(unit, first(unit, today)?)?;
    let mut boundaries = Vec::new();
    while date <= last {
        boundaries.extend(boundary(date, &zone));
        date = next(unit, date)?;
    }
    // A day that a zone skipped begins at the same instant as the next one.
    boundaries.dedup();
    Calendar::new(boundaries).ok()
}

fn zone(name: Option<&str>) -> Option<TimeZone> {
    name.map_or(Some(TimeZone::UTC), |name| TimeZone::get(name).ok())
}

/// The first instant of a day, if it is after 1970. Offsets with seconds, which time zones had before clocks were
/// synchronised, are rounded down to the minute.
fn boundary(date: Date, zone: &TimeZone) -> Option<Timestamp> {
    let start = date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?;
    let seconds = u64::try_from(start.timestamp().as_second()).ok()?;
    Some(Timestamp::from_nanos((seconds / 60).checked_mul(60_000_000_000)?))
}

/// The first day of the period that contains a day.
fn first(unit: CalendarUnit, date: Date) -> Option<Date> {
    match unit {
        CalendarUnit::Day => Some(date),
        CalendarUnit::Week if date.weekday() == Weekday::Monday => Some(date),
        CalendarUnit::Week => date.nth_weekday(-1, Weekday::Monday).ok(),
        CalendarUnit::Month => Some(date.first_of_month()),
    }
}

fn previous(unit: CalendarUnit, date: Date) -> Option<Date> {
    date.checked_sub(length(unit)).ok()
}

fn next(unit: CalendarUnit, date: Date) -> Option<Date> {
    date.checked_add(length(unit)).ok()
}

fn length(unit: CalendarUnit) -> jiff::Span {
    match unit {
        CalendarUnit::Day => 1.day(),
        CalendarUnit::Week => 1.week(),
        CalendarUnit::Month => 1.month(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let second = text.parse::<Instant>().unwrap().as_second();
        Timestamp::from_nanos(u64::try_from(second).unwrap() * 1_000_000_000)
    }

    fn window(unit: CalendarUnit, zone: Option<&str>, now: &str) -> (Timestamp, Timestamp) {
        let (start, end) = calendar(unit, zone, at(now)).unwrap().window(at(now));
        (start, end.unwrap())
    }

    #[test]
    fn periods_begin_at_local_midnight() {
        use CalendarUnit::{Day, Month, Week};
        for (unit, zone, now, start, end) in [
            (Day, None, "2026-11-15T12:00:00Z", "2026-11-15T00:00:00Z", "2026-11-16T00:00:00Z"),
            // Summer time begins and ends.
            (
                Day,
                Some("Europe/Berlin"),
                "2026-03-29T12:00:00Z",
                "2026-03-28T23:00:00Z",
                "2026-03-29T22:00:00Z",
            ),
            (
                Day,
                Some("Europe/Berlin"),
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            // The clock skips midnight, so the day begins at one.
            (
                Day,
                Some("America/Asuncion"),
                "2023-10-01T12:00:00Z",
                "2023-10-01T04:00:00Z",
                "2023-10-02T03:00:00Z",
            ),
            // A Sunday belongs to the week of the Monday before it.
            (Week, None, "2026-11-15T23:59:59Z", "2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"),
            (Week, None, "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            (
                Month,
                Some("Asia/Kolkata"),
                "2028-02-10T00:00:00Z",
                "2028-01-31T18:30:00Z",
                "2028-02-29T18:30:00Z",
            ),
        ] {
            assert_eq!(window(unit, zone, now), (at(start), at(end)), "{unit:?} {zone:?} {now}");
        }
    }

    /// Samoa had no 30 December 2011.
    #[test]
    fn a_day_that_a_zone_skipped_has_no_window() {
        let calendar =
            calendar(CalendarUnit::Day, Some("Pacific/Apia"), at("2011-12-29T12:00:00Z")).unwrap();
        let (start, end) = calendar.window(at("2011-12-30T11:00:00Z"));
        assert_eq!((start, end.unwrap()), (at("2011-12-30T10:00:00Z"), at("2011-12-31T10:00:00Z")));
    }

    #[test]
    fn boundaries_reach_two_years_ahead() {
        for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month] {
            let calendar = calendar(unit, None, at("2026-11-15T12:00:00Z")).unwrap();
            assert!(calendar.window(at("2028-10-14T12:00:00Z")).1.is_some(), "{unit:?}");
        }
        assert_eq!(
            calendar(CalendarUnit::Day, Some("Europe/Atlantis"), at("2026-11-15T12:00:00Z")),
            None
        );
    }
}
