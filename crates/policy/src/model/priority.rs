//! Priority classes, and how many seats each class has reserved.
//!
//! A *seat* is the right to have one request in flight at the upstream. Of `L` seats, a class with a share of `s` percent
//! has about `s · L / 100` reserved: rounded down, at least one, and what the rounding leaves goes to the largest remainders.
//!
//! ```text
//!   L = 8       critical 40 %   high 30 %   normal 20 %   low 10 %
//!   exact            3.2           2.4          1.6          0.8
//!   floor            3             2            1            1 (at least one)
//!   remainder        0.2           0.4          0.6          -          one seat is left, it goes to normal
//!   reserved         3             2            2            1
//! ```
//!
//! Rounding up instead would reserve 10 seats of 8.

use std::cmp::Reverse;
use std::num::NonZeroU32;
use tidegate_core::Span;

/// A class of requests that have the same priority.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_policy::{Classes, PriorityClass};
/// let payments = PriorityClass::new("payments", 9, 80)?;
/// let reports = PriorityClass::new("reports", 1, 20)?.with_patience(Span::from_millis(100));
/// let classes = Classes::new(vec![payments, reports])?;
/// assert_eq!(classes.seats(10)?, [8, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    name: String,
    weight: NonZeroU32,
    share_percent: u32,
    patience: Span,
}

/// All classes of a scheduler, the highest priority first.
///
/// The default is critical, high, normal and low, with weights 64, 16, 4 and 1, and shares of 40, 30, 20 and 10 %.
///
/// ```
/// use tidegate_policy::Classes;
/// let classes = Classes::default();
/// assert_eq!(classes.seats(8)?, [3, 2, 2, 1]);
/// assert_eq!(classes.get(classes.find("high").unwrap()).name(), "high");
/// assert!(classes.find("hihg").is_none());
/// # Ok::<(), tidegate_policy::ClassesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The highest class. It is kept apart from the others, so that there is always at least one.
    first: PriorityClass,
    others: Vec<PriorityClass>,
    /// See [`Classes::usual`].
    usual: ClassIndex,
}

/// The place of a class in its [`Classes`]; 0 is the highest priority. See [`Classes::find`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(u8);

/// The classes, or a number of seats for them, are not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassesError {
    /// The list is empty.
    #[error("there are no priority classes; name at least one")]
    Empty,
    /// The list is too long.
    #[error("there are more than {MAX_CLASSES} priority classes; remove some")]
    TooMany,
    /// Two classes have the same name.
    #[error("there are two priority classes `{0}`; rename one")]
    Duplicate(String),
    /// A weight is zero, so the class would never get an unreserved seat.
    #[error("the weight of priority class `{0}` is 0; use 1 or more")]
    ZeroWeight(String),
    /// Together the classes reserve more seats than there are.
    #[error("the shares of the priority classes add up to {0} %; lower them to at most 100 %")]
    SharesAboveAll(u32),
    /// There is not one seat for each class.
    #[error("{limit} seats are too few for {classes} priority classes; allow at least {classes}")]
    TooFewSeats {
        /// The number of seats.
        limit: usize,
        /// The number of classes.
        classes: usize,
    },
}

/// Each decision looks at every class, so their number is bounded.
const MAX_CLASSES: usize = 16;

/// How long requests of the classes high and above wait by default. In the simulation of the scheduler, they wait a few
/// milliseconds even in a spike; this is for the second in which slow requests of other classes still hold their seats.
const HIGH_PATIENCE: Span = Span::from_millis(500);

/// How long requests of the class low wait by default. A longer wait does not let more of them through in a spike, since all
/// seats are busy anyway. It only makes each of them later: the queue is never empty, so all wait about as long as they can.
const LOW_PATIENCE: Span = Span::from_millis(100);

// === impl PriorityClass ===

impl PriorityClass {
    /// A class whose requests wait for at most 500 ms by default. Fails if the weight is 0.
    ///
    /// `weight` orders the requests for seats that no class has reserved: a class with weight 16 gets 16 of them for each one
    /// that a class with weight 1 gets, while both wait. `share_percent` is the part of the seats that it has reserved.
    pub fn new(
        name: impl Into<String>,
        weight: u32,
        share_percent: u32,
    ) -> Result<Self, ClassesError> {
        let name = name.into();
        match NonZeroU32::new(weight) {
            Some(weight) => Ok(Self { name, weight, share_percent, patience: HIGH_PATIENCE }),
            None => Err(ClassesError::ZeroWeight(name)),
        }
    }

    /// Sets how long requests of this class wait if nothing else is said.
    #[must_use]
    pub fn with_patience(self, patience: Span) -> Self {
        Self { patience, ..self }
    }

    /// The name, as policies and metrics show it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long a request of this class should wait at most, if the caller has no reason for another time.
    #[must_use]
    pub const fn patience(&self) -> Span {
        self.patience
    }

    /// How many unreserved seats the class gets in relation to other classes, while they wait.
    #[must_use]
    pub const fn weight(&self) -> NonZeroU32 {
        self.weight
    }

    /// The part of all seats that the class has reserved, in per cent.
    #[must_use]
    pub const fn share_percent(&self) -> u32 {
        self.share_percent
    }

    fn default_class(name: &str, weight: NonZeroU32, share_percent: u32, patience: Span) -> Self {
        Self { name: name.to_owned(), weight, share_percent, patience }
    }
}

// === impl Classes ===

impl Classes {
    /// Classes in the order of their priority, the highest first.
    pub fn new(classes: Vec<PriorityClass>) -> Result<Self, ClassesError> {
        if classes.len() > MAX_CLASSES {
            return Err(ClassesError::TooMany);
        }
        for (at, class) in classes.iter().enumerate() {
            if classes.iter().skip(at).filter(|other| other.name == class.name).count() > 1 {
                return Err(ClassesError::Duplicate(class.name.clone()));
            }
        }
        let percent = classes.iter().fold(0_u32, |sum, c| sum.saturating_add(c.share_percent));
        if percent > 100 {
            return Err(ClassesError::SharesAboveAll(percent));
        }
        let mut classes = classes.into_iter();
        let first = classes.next().ok_or(ClassesError::Empty)?;
        Ok(Self::of(first, classes.collect()))
    }

    fn of(first: PriorityClass, others: Vec<PriorityClass>) -> Self {
        let mut all = std::iter::once(&first).chain(&others);
        let normal = all.position(|class| class.name == "normal");
        let usual = ClassIndex::at(normal.unwrap_or(others.len()));
        Self { first, others, usual }
    }

    /// One class for all requests.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Classes::only_normal().seats(1)?, [1]);
    /// # Ok::<(), tidegate_policy::ClassesError>(())
    /// ```
    #[must_use]
    pub fn only_normal() -> Self {
        let normal = PriorityClass::default_class("normal", NonZeroU32::MIN, 100, HIGH_PATIENCE);
        Self::of(normal, vec![])
    }

    /// The class of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ClassIndex> {
        let at = self.iter().position(|class| class.name == name)?;
        u8::try_from(at).ok().map(ClassIndex)
    }

    /// A class. An index of other classes that is too large means the lowest class.
    #[must_use]
    pub fn get(&self, class: ClassIndex) -> &PriorityClass {
        self.iter().nth(class.position()).unwrap_or_else(|| self.lowest())
    }

    /// All classes, the highest priority first.
    pub fn iter(&self) -> impl Iterator<Item = &PriorityClass> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// How many of `limit` seats each class has reserved: at least one each, and together at most `limit`.
    ///
    /// ```
    /// use tidegate_policy::{Classes, ClassesError};
    /// assert_eq!(Classes::default().seats(32)?, [13, 10, 6, 3]);
    /// let too_few = Classes::default().seats(3);
    /// assert_eq!(too_few, Err(ClassesError::TooFewSeats { limit: 3, classes: 4 }));
    /// # Ok::<(), ClassesError>(())
    /// ```
    pub fn seats(&self, limit: usize) -> Result<Vec<usize>, ClassesError> {
        let classes = self.count();
        if limit < classes {
            return Err(ClassesError::TooFewSeats { limit, classes });
        }
        let exact: Vec<SeatShare> = self.iter().map(|class| class.share_of(limit)).collect();
        let percent = self.iter().fold(0, |sum: u32, c| sum.saturating_add(c.share_percent));
        let total = share(limit, percent).whole.max(classes);
        let mut seats: Vec<usize> = exact.iter().map(|exact| exact.whole.max(1)).collect();
        hand_out(&mut seats, &exact, total);
        take_back(&mut seats, total);
        Ok(seats)
    }

    /// How many classes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.others.len().saturating_add(1)
    }

    /// The class of requests that nothing gives a class: `normal`, or the lowest class if none has this name.
    ///
    /// ```
    /// use tidegate_policy::{Classes, PriorityClass};
    /// let classes = Classes::default();
    /// assert_eq!(classes.get(classes.usual()).name(), "normal");
    /// let own = Classes::new(vec![PriorityClass::new("a", 2, 50)?, PriorityClass::new("b", 1, 50)?])?;
    /// assert_eq!(own.get(own.usual()).name(), "b");
    /// # Ok::<(), tidegate_policy::ClassesError>(())
    /// ```
    #[must_use]
    pub const fn usual(&self) -> ClassIndex {
        self.usual
    }

    fn lowest(&self) -> &PriorityClass {
        self.others.last().unwrap_or(&self.first)
    }
}

impl Default for Classes {
    fn default() -> Self {
        let weight = |weight: u32| NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN);
        let class = PriorityClass::default_class;
        let others = vec![
            class("high", weight(16), 30, HIGH_PATIENCE),
            class("normal", weight(4), 20, HIGH_PATIENCE),
            class("low", weight(1), 10, LOW_PATIENCE),
        ];
        Self::of(class("critical", weight(64), 40, HIGH_PATIENCE), others)
    }
}

impl ClassIndex {
    /// The position in the list of classes, beginning with 0.
    #[must_use]
    pub fn position(self) -> usize {
        usize::from(self.0)
    }

    /// The index for a position in the list of classes, of which there are at most 16.
    #[must_use]
    pub fn at(position: usize) -> Self {
        Self(u8::try_from(position).unwrap_or(u8::MAX))
    }
}

// === seats ===

/// A share of the seats: whole seats, and the hundredths that are left.
#[derive(Clone, Copy)]
struct SeatShare {
    whole: usize,
    hundredths: usize,
}

impl PriorityClass {
    fn share_of(&self, limit: usize) -> SeatShare {
        share(limit, self.share_percent)
    }
}

fn share(limit: usize, percent: u32) -> SeatShare {
    let hundredths = limit.saturating_mul(usize::try_from(percent).unwrap_or(usize::MAX));
    SeatShare {
        whole: hundredths.checked_div(100).unwrap_or(0),
        hundredths: hundredths.checked_rem(100).unwrap_or(0),
    }
}

/// Gives one more seat each to the classes with the largest remainders, up to `total` seats. A class that has its only seat
/// because every class gets one has been rounded up already.
fn hand_out(seats: &mut [usize], exact: &[SeatShare], total: usize) {
    let left = total.saturating_sub(seats.iter().sum());
    let mut by_remainder: Vec<_> = seats.iter_mut().zip(exact).collect();
    by_remainder.retain(|(_, exact)| exact.whole > 0 && exact.hundredths > 0);
    by_remainder.sort_by_key(|(_, exact)| Reverse(exact.hundredths)); // stable: of equal ones, the higher class
    for (seats, _) in by_remainder.into_iter().take(left) {
        *seats = seats.saturating_add(1);
    }
}

/// Takes from the classes with the most seats what others got only because every class gets one.
fn take_back(seats: &mut [usize], total: usize) {
    while seats.iter().sum::<usize>() > total {
        let Some(most) = seats.iter_mut().max_by_key(|seats| **seats) else { return };
        *most = most.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_shares_fill_every_number_of_seats() {
        let classes = Classes::default();
        let seats = |limit| classes.seats(limit).unwrap();
        assert_eq!(seats(4), [1, 1, 1, 1]);
        assert_eq!(seats(5), [2, 1, 1, 1]);
        assert_eq!(seats(8), [3, 2, 2, 1]);
        assert_eq!(seats(32), [13, 10, 6, 3]);
        assert_eq!(seats(1_000), [400, 300, 200, 100]);
    }

    #[test]
    fn a_large_share_gives_seats_to_classes_that_would_have_none() {
        let class = |name: &str, share| PriorityClass::new(name, 1, share).unwrap();
        let classes = Classes::new(vec![class("a", 97), class("b", 1), class("c", 1)]).unwrap();
        assert_eq!(classes.seats(3).unwrap(), [1, 1, 1]);
        assert_eq!(classes.seats(10).unwrap(), [7, 1, 1]); // 99 % of 10, rounded down, is 9
    }

    #[test]
    fn classes_that_are_not_valid_are_rejected() {
        let class = |name: &str, share| PriorityClass::new(name, 1, share).unwrap();
        assert_eq!(Classes::new(vec![]), Err(ClassesError::Empty));
        let twice = vec![class("a", 1), class("b", 1), class("a", 1)];
        assert_eq!(Classes::new(twice), Err(ClassesError::Duplicate("a".into())));
        let shares = vec![class("a", 70), class("b", 31)];
        assert_eq!(Classes::new(shares), Err(ClassesError::SharesAboveAll(101)));
        let many = (0..17).map(|n| class(&n.to_string(), 1)).collect();
        assert_eq!(Classes::new(many), Err(ClassesError::TooMany));
        assert_eq!(PriorityClass::new("a", 0, 1), Err(ClassesError::ZeroWeight("a".into())));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn every_class_has_a_seat_and_none_is_reserved_twice(
            parts in prop::collection::vec(0_u32..=100, 1..=16),
            extra in 0_usize..200,
        ) {
            let sum = parts.iter().sum::<u32>().max(100);
            let shares: Vec<u32> = parts.iter().map(|part| part * 100 / sum).collect();
            let class = |(n, share): (usize, &u32)| PriorityClass::new(n.to_string(), 1, *share).unwrap();
            let classes = Classes::new(shares.iter().enumerate().map(class).collect()).unwrap();
            let limit = shares.len() + extra;
            let seats = classes.seats(limit).unwrap();
            prop_assert!(seats.iter().all(|seats| *seats >= 1));
            prop_assert!(seats.iter().sum::<usize>() <= limit);
            for (seats, share) in seats.iter().zip(&shares) {
                let whole = limit * usize::try_from(*share).unwrap() / 100;
                prop_assert!(*seats <= (whole + 1).max(1), "{seats} seats for {share} % of {limit}");
            }
        }
    }
}
