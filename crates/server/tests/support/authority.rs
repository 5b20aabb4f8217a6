//! Certificates for tests, and the CA that signs them.

use super::folder;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use std::path::PathBuf;

/// A CA, and a folder for its certificates.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = folder("authority");
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("authority.pem"), own.pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// Creates a self-signed certificate and its key, in files of this name.
    pub(crate) fn sign_itself(&self, name: &str, kind: IsCa) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = kind;
        let own = params.self_signed(&key).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), own.pem()).unwrap();
    }

    /// Creates a certificate and its key, in files of this name.
    pub(crate) fn sign(&self, name: &str) {
        self.sign_until(name, &["localhost", "127.0.0.1"], 4096);
    }

    /// Creates a certificate for these hosts, valid until the first day of a year, and its key, in files of this name.
    pub(crate) fn sign_until(&self, name: &str, hosts: &[&str], year: i32) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        // The key first: a server that reads between the two writes finds a pair that does not match, and keeps the
        // old one.
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), signed.pem()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
