//! Requests that are rendered once: a text in which every `#` is a digit of a key's number, so that its
//! length never changes.
//!
//! ```text
//! {"ip":"10.1##.1##.1##"}  for key 20,304  {"ip":"10.102.103.104"}
//! ```

use std::num::NonZeroU32;

/// One request or several copies of it, each with its own key.
#[derive(Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    /// The length of one request.
    width: usize,
    /// The positions of the key's digits in one request, the last digit first.
    digits: Vec<usize>,
}

impl Template {
    pub(crate) fn new(text: &str) -> Self {
        let slots = text.bytes().enumerate().filter(|(_, byte)| *byte == b'#');
        let mut digits: Vec<usize> = slots.map(|(place, _)| place).collect();
        digits.reverse();
        Self { bytes: text.into(), width: text.len().max(1), digits }
    }

    /// Several copies in a row.
    pub(crate) fn repeated(self, times: usize) -> Self {
        Self { bytes: self.bytes.repeat(times), ..self }
    }

    /// Renders the requests for newly drawn keys.
    pub(crate) fn of(&mut self, mut draw: impl FnMut() -> u32) -> &[u8] {
        for request in self.bytes.chunks_exact_mut(self.width) {
            write_digits(request, &self.digits, draw());
        }
        &self.bytes
    }
}

/// Writes the digits of a key's number to their positions, which begin with the last digit's.
pub(crate) fn write_digits(request: &mut [u8], places: &[usize], key: u32) {
    let mut rest = key;
    for place in places {
        if let Some(byte) = request.get_mut(*place) {
            *byte = u8::try_from(rest % 10).unwrap_or(0) | b'0';
        }
        rest /= 10;
    }
}

/// Random keys with a uniform distribution, so that caches cannot predict them.
pub(crate) struct Keys {
    state: u64,
    many: NonZeroU32,
}

impl Keys {
    /// Different seeds yield different sequences.
    pub(crate) fn new(many: NonZeroU32, seed: u32) -> Self {
        let state = u64::from(seed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { state, many }
    }

    /// The next key, by Marsaglia's xorshift.
    pub(crate) fn draw(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        u32::try_from(self.state >> 32).unwrap_or(0) % self.many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_becomes_a_digit_and_the_length_stays() {
        let mut request = Template::new(r#"{"ip":"10.1##.1##.1##"}"#);
        for (key, ip) in
            [(0, "10.100.100.100"), (20_304, "10.102.103.104"), (999_999, "10.199.199.199")]
        {
            let expected = format!("{{\"ip\":\"{ip}\"}}");
            assert_eq!(str::from_utf8(request.of(|| key)).unwrap(), expected);
        }
        // There is no mark for the seventh digit, so it is left out.
        let same = request.of(|| 4_020_304).to_owned();
        assert_eq!(request.of(|| 20_304), same);
    }

    #[test]
    fn each_copy_of_a_request_has_its_own_key() {
        let mut requests = Template::new("GET k##\r\n").repeated(3);
        let mut keys = 8..;
        let mut draw = || keys.next().unwrap();
        assert_eq!(requests.of(&mut draw), b"GET k08\r\nGET k09\r\nGET k10\r\n");
        assert_eq!(requests.of(&mut draw), b"GET k11\r\nGET k12\r\nGET k13\r\n");
    }

    #[test]
    fn keys_are_uniform_and_differ_between_connections() {
        let mut keys = Keys::new(NonZeroU32::new(10).unwrap(), 0);
        let mut drawn = [0u32; 10];
        for _ in 0..100_000 {
            drawn[usize::try_from(keys.draw()).unwrap()] += 1;
        }
        assert!(drawn.iter().all(|times| (9_500..10_500).contains(times)), "{drawn:?}");
        let many = NonZeroU32::new(1_000_000).unwrap();
        let [first, second] = [0, 1].map(|seed| {
            let mut keys = Keys::new(many, seed);
            [keys.draw(), keys.draw(), keys.draw()]
        });
        assert_ne!(first, second);
    }
}
