//! Numbers as LEB128 writes them: seven bits to a byte, the lowest first; the top bit says that more follow.

/// Writes a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number > 0x7f {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

/// Reads a number from the front of what is left; `None` when there is none, or one that is too large.
pub(crate) fn take(rest: &mut &[u8]) -> Option<u128> {
    let mut number = 0u128;
    for shift in (0..128).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u128::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
