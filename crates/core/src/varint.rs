//! Unsigned LEB128: variable-length integers with 7 bits per byte, lowest bits first. The top bit of a byte says that
//! another byte follows.
//!
//! ```text
//!   300  =  0b10_0101100   ──►   1_0101100  0_0000010
//! ```
//!
//! The core writes its states with it, and the limiter writes receipts. A number that does not fit the integer type is
//! refused, never truncated. Padding with zero bits is accepted as long as it fits (`[0x80, 0x00]` is 0).

/// The shift of the tenth byte of a 64-bit number, of which only one bit is left.
const LAST_SHIFT: u32 = 63;
/// The shift of the nineteenth byte of a 128-bit number, of which only two bits are left.
const LAST_WIDE_SHIFT: u32 = 126;

/// Appends a number of up to 64 bits.
///
/// ```
/// use tidegate_core::varint;
/// let mut bytes = Vec::new();
/// varint::encode(&mut bytes, 300);
/// assert_eq!(bytes, [0b1010_1100, 0b0000_0010]);
/// ```
pub fn encode(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or_default());
}

/// Reads the number that begins at index `at`, and returns it with the index after it. `None` if the bytes end before
/// the number does, or if the number exceeds 64 bits.
///
/// ```
/// use tidegate_core::varint;
/// let bytes = [0b1010_1100, 0b0000_0010, 7];
/// assert_eq!(varint::decode(&bytes, 0), Some((300, 2)));
/// assert_eq!(varint::decode(&bytes, 2), Some((7, 3)));
/// assert_eq!(varint::decode(&bytes, 3), None); // at the end
/// assert_eq!(varint::decode(&[0xff; 20], 0), None); // too long for 64 bits
/// ```
#[must_use]
pub fn decode(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    let mut shift = 0u32;
    loop {
        let byte = *bytes.get(at)?;
        at = at.checked_add(1)?;
        if shift >= LAST_SHIFT && (shift > LAST_SHIFT || byte > 1) {
            return None;
        }
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((number, at));
        }
        shift = shift.saturating_add(7);
    }
}

/// Appends a number of up to 128 bits. Numbers that fit 64 bits are written as by [`encode`].
///
/// ```
/// use tidegate_core::varint;
/// let mut bytes = Vec::new();
/// varint::encode_wide(&mut bytes, u128::MAX);
/// assert_eq!(bytes.len(), 19);
/// assert_eq!(varint::decode_wide(&bytes, 0), Some((u128::MAX, 19)));
/// ```
pub fn encode_wide(bytes: &mut Vec<u8>, mut number: u128) {
    loop {
        if let Ok(number) = u64::try_from(number) {
            return encode(bytes, number);
        }
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
}

/// Reads the number that begins at index `at`, and returns it with the index after it. `None` if the bytes end before
/// the number does, or if the number exceeds 128 bits.
///
/// ```
/// use tidegate_core::varint;
/// assert_eq!(varint::decode_wide(&[0b1010_1100, 0b0000_0010], 0), Some((300, 2)));
/// assert_eq!(varint::decode_wide(&[0b1010_1100], 0), None); // the second byte is missing
/// assert_eq!(varint::decode_wide(&[0xff; 20], 0), None); // too long for 128 bits
/// ```
#[must_use]
pub fn decode_wide(bytes: &[u8], mut at: usize) -> Option<(u128, usize)> {
    let mut number = 0;
    let mut shift = 0u32;
    loop {
        let byte = *bytes.get(at)?;
        at = at.checked_add(1)?;
        if shift >= LAST_WIDE_SHIFT && (shift > LAST_WIDE_SHIFT || byte > 3) {
            return None;
        }
        number |= u128::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((number, at));
        }
        shift = shift.saturating_add(7);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(wide in any::<u128>(), shift in 0u32..128, before in 0usize..3) {
            let wide = wide >> shift;
            let mut bytes = vec![0; before];
            encode_wide(&mut bytes, wide);
            prop_assert_eq!(decode_wide(&bytes, before), Some((wide, bytes.len())));
            let narrow = u64::try_from(wide).ok();
            prop_assert_eq!(decode(&bytes, before), narrow.map(|narrow| (narrow, bytes.len())));
            if let Some(narrow) = narrow {
                let mut same = vec![0; before];
                encode(&mut same, narrow);
                prop_assert_eq!(same, bytes);
            }
        }
    }

    #[test]
    fn the_largest_numbers_fit_and_one_bit_more_is_refused() {
        let largest = [[0xff; 9].as_slice(), &[0x01]].concat();
        assert_eq!(decode(&largest, 0), Some((u64::MAX, 10)));
        let one_bit_more = [[0xff; 9].as_slice(), &[0x02]].concat();
        assert_eq!(decode(&one_bit_more, 0), None);
        let largest = [[0xff; 18].as_slice(), &[0x03]].concat();
        assert_eq!(decode_wide(&largest, 0), Some((u128::MAX, 19)));
        let one_bit_more = [[0xff; 18].as_slice(), &[0x04]].concat();
        assert_eq!(decode_wide(&one_bit_more, 0), None);
    }
}
