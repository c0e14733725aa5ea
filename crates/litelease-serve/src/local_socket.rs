//! A socket beside the local key, for clients of the same user.
//!
//! Any program may listen on a TCP port. While the server is down, another user's program could do
//! so and receive the local key. The folder of the key belongs to its user alone, and so does a
//! socket in it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{self, TcpStream};

/// A socket on which a server listens besides its address. Its file is removed when it is dropped.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # use std::os::unix::fs::PermissionsExt;
/// # std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
/// use litelease_serve::LocalSocket;
///
/// let socket = LocalSocket::beside(&folder.path().join("127.0.0.1:7070"))?;
/// assert!(folder.path().join("127.0.0.1:7070.sock").exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The number of its file. A server that comes after this one puts another file there.
    inode: u64,
}

impl LocalSocket {
    /// Listens on a socket beside the file of the local key. Fails if other users can open the
    /// folder.
    pub fn beside(key_file: &Path) -> io::Result<Self> {
        let path = beside(key_file);
        let folder = path.parent().unwrap_or(&path);
        if fs::metadata(folder)?.permissions().mode() & 0o077 != 0 {
            return Err(io::Error::other("other users can open its folder: chmod 700 it"));
        }
        // A killed server may have left one behind. Only one server has the address.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(&path)?.ino();
        Ok(LocalSocket { listener, path, inode })
    }

    /// Forwards connections to the server at `address`, in the same process, until this is dropped.
    pub(crate) async fn pass_on(&self, address: SocketAddr) -> io::Result<()> {
        let listener = net::UnixListener::from_std(self.listener.try_clone()?)?;
        loop {
            let Ok((mut client, _)) = listener.accept().await else {
                // For example, out of file descriptors: that passes.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(address).await {
                    // An error means that one of both is gone.
                    let _ = server.set_nodelay(true);
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    }
}

/// Returns the path of the socket beside the file of a local key.
pub(crate) fn beside(key_file: &Path) -> PathBuf {
    let mut path = OsString::from(key_file);
    path.push(".sock");
    path.into()
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
