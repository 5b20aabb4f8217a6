//! Numbers of 7 bits a byte, the lowest first; the top bit says that more follow.

pub(crate) fn encode(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or_default());
}

/// The number at a place, and where the next begins; `None` at the end.
pub(crate) fn decode(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    let mut shift = 0u32;
    loop {
        let byte = *bytes.get(at)?;
        at = at.checked_add(1)?;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((number, at));
        }
        shift = shift.saturating_add(7);
    }
}
