//! The states of canary calls, which probe a server with the real script.

use tidegate_core::StateId;

/// `tidegate canary`. The ids of other states are hashes, so no request uses this one.
const CANARY: u128 = 0x7469_6465_6761_7465_2063_616e_6172_7900;

/// The canary state with this hash tag, which is the upper 16 bits of its id and chooses the slot.
pub(super) fn canary(tag: u16) -> StateId {
    StateId(CANARY & (u128::MAX >> 16) | u128::from(tag) << 112)
}

/// Whether a state is a canary state.
#[cfg(feature = "testing")]
pub(super) const fn is_canary(state: StateId) -> bool {
    (state.0 ^ CANARY) << 16 >> 24 == 0
}
