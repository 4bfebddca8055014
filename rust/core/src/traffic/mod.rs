//! Roads and those who drive on them. One file a noun.

pub mod scene;
