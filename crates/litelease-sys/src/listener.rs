//! Receives notifications.

/// Receives notifications that a file was written. They are hints: read the row before acting.
pub trait Listener: Send + Sync {
    /// Notifies: the file may have changed.
    fn nudge(&self);
}
