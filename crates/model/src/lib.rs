//! Records, states and ids shared by every part; see the crate description.
