//! A real memcached.

use super::folder;
use super::upstream::free_address;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A real memcached, and a folder for what its nodes share. It ends with the test.
pub(crate) struct Memcached {
    child: Child,
    address: SocketAddr,
    pub(crate) folder: PathBuf,
}

impl Memcached {
    pub(crate) fn started() -> Self {
        let address = free_address();
        let mut child = Command::new("memcached")
            .args(["-U", "0", "-u", "nobody", "-l", &address.ip().to_string()])
            .args(["-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "memcached ended immediately");
            std::thread::yield_now();
        }
        Self { child, address, folder: folder("memcached") }
    }

    pub(crate) fn url(&self) -> String {
        format!("memcached://{}", self.address)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
