//! High-level commands.

/// What a `Meta` driver can be told (`DiscreteMetaAction.ACTIONS_ALL`, in this order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    LaneLeft,
    Idle,
    LaneRight,
    Faster,
    Slower,
}
