//! Children, which this system does not tie to their parent.

use std::io;

/// Does nothing on this system.
pub fn die_with(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Does nothing on this system: orphans are init's.
pub fn adopt_orphans() {}
