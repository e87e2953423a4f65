//! Everything that needs real control planes, in one binary so that they start once.

mod control_plane;
mod crds;
mod skeleton;
