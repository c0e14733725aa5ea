//! The path of the database, and its creation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::system;

/// How many links in a row are followed before it counts as a loop: as many as Linux follows.
const MOST_LINKS: usize = 40;

/// Returns the canonical path of a file, which need not exist yet.
///
/// ```
/// # use litelease_sys::resolve;
/// # let folder = tempfile::tempdir().unwrap();
/// let file = folder.path().join("app.sqlite3"); // not there yet
/// # #[cfg(unix)] {
/// std::os::unix::fs::symlink(&file, folder.path().join("link")).unwrap();
/// assert_eq!(resolve(&folder.path().join("link"))?, resolve(&file)?);
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            resolved => return resolved,
        }
        let (folder, name) = match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) if folder.as_os_str().is_empty() => (Path::new("."), name),
            (Some(folder), Some(name)) => (folder, name),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        let folder = folder.canonicalize()?;
        match fs::read_link(&path) {
            // SQLite creates the file that the link points to.
            Ok(target) => path = folder.join(target),
            Err(_) => return Ok(folder.join(name)),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Creates an empty database file that only its owner may read and write, unless the path exists.
///
/// Ignores errors: SQLite opens the file next, and reports them better. Names that are no paths to
/// SQLite (`:memory:`, a `file:` URI) are left to it.
///
/// ```
/// # use litelease_sys::create_private;
/// # let folder = tempfile::tempdir().unwrap();
/// let file = folder.path().join("app.sqlite3");
/// create_private(&file);
/// # #[cfg(unix)] {
/// use std::os::unix::fs::MetadataExt;
/// assert_eq!(std::fs::metadata(&file)?.mode() & 0o777, 0o600);
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn create_private(path: &Path) {
    let text = path.as_os_str().as_encoded_bytes();
    let is_special = text.is_empty() || text == b":memory:" || text.starts_with(b"file:");
    if is_special || path.exists() {
        return;
    }
    if let Ok(path) = resolve(path) {
        system::create_unopened(&path);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_circle_of_links_leads_nowhere() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::os::unix::fs::symlink(&a, &b)?;
        std::os::unix::fs::symlink(&b, &a)?;
        assert!(resolve(&a).is_err());
        create_private(&a);
        assert!(fs::symlink_metadata(&a)?.is_symlink());
        Ok(())
    }

    #[test]
    fn what_is_there_keeps_its_mode_and_content() -> io::Result<()> {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("app.sqlite3");
        fs::write(&file, "text")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o664))?;
        create_private(&file);
        assert_eq!(fs::metadata(&file)?.mode() & 0o777, 0o664);
        assert_eq!(fs::read(&file)?, b"text");
        Ok(())
    }
}
