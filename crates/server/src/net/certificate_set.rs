//! Several certificates, of which each client gets the one for the name that it asks for (SNI).
//!
//! ```text
//!   api.example.com ──► a certificate with this name ──► one for *.example.com ──► the default: the first certificate
//! ```
//!
//! The names are those in the certificates themselves (subject alternative names). If two certificates have a name, the first
//! one counts.

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::Arc;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// Certificates, by name.
#[derive(Debug, Default)]
pub(super) struct CertificateSet {
    default: Option<Arc<CertifiedKey>>,
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// By the name without `*.`.
    wildcard: HashMap<String, Arc<CertifiedKey>>,
    /// When the first of them expires, in seconds since the epoch.
    expires: Option<u64>,
}

/// What a certificate says about itself.
#[derive(Debug)]
pub(super) struct CertificateFacts {
    /// Its host names, in lower case.
    names: Vec<String>,
    pub(super) expires: ASN1Time,
}

impl CertificateSet {
    /// Adds a certificate; the first one is the default. It is an error if no client would ever get it.
    pub(super) fn add(
        &mut self,
        certified: CertifiedKey,
        facts: &CertificateFacts,
    ) -> Result<(), String> {
        let certified = Arc::new(certified);
        let mut is_used = false;
        for name in &facts.names {
            let (names, name) = match name.strip_prefix("*.") {
                Some(rest) => (&mut self.wildcard, rest),
                None => (&mut self.exact, name.as_str()),
            };
            if !names.contains_key(name) {
                names.insert(name.to_owned(), Arc::clone(&certified));
                is_used = true;
            }
        }
        let expires = u64::try_from(facts.expires.timestamp()).unwrap_or(0);
        self.expires = Some(self.expires.map_or(expires, |first| first.min(expires)));
        if self.default.is_none() {
            self.default = Some(certified);
        } else if facts.names.is_empty() {
            return Err("it has no host name (subjectAltName), so no client would get it; list it first to make it the default".to_owned());
        } else if !is_used {
            let names = facts.names.join(", ");
            return Err(format!(
                "certificates before it have all of its names ({names}), so no client would get it; remove it"
            ));
        }
        Ok(())
    }

    /// When the first of the certificates expires, in seconds since the epoch.
    pub(super) const fn expires(&self) -> Option<u64> {
        self.expires
    }

    /// The certificate for a name.
    pub(super) fn of(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = || self.wildcard.get(name.split_once('.')?.1);
            self.exact.get(&name).or_else(wildcard)
        });
        named.or(self.default.as_ref()).cloned()
    }
}

impl CertificateFacts {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let wrong =
            |error: &dyn std::fmt::Display| format!("the certificate is not valid: {error}");
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| wrong(&error))?;
        let names = parsed.subject_alternative_name().map_err(|error| wrong(&error))?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            GeneralName::OtherName(..)
            | GeneralName::RFC822Name(_)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::URI(_)
            | GeneralName::IPAddress(_)
            | GeneralName::RegisteredID(_)
            | GeneralName::Invalid(..) => None,
        });
        Ok(Self { names: names.collect(), expires: parsed.validity().not_after })
    }

    /// Whether it has expired at a time in seconds since the epoch.
    pub(super) fn has_expired(&self, now: u64) -> bool {
        i64::try_from(now).is_ok_and(|now| self.expires.timestamp() < now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use rustls::pki_types::PrivateKeyDer;

    fn certificate(names: &[&str]) -> (CertifiedKey, CertificateFacts) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let signed = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let facts = CertificateFacts::of(signed.der()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = crate::net::tls::provider();
        (CertifiedKey::from_der(vec![signed.der().clone()], key, &provider).unwrap(), facts)
    }

    fn set(certificates: &[&[&str]]) -> Result<CertificateSet, String> {
        let mut set = CertificateSet::default();
        for names in certificates {
            let (certified, facts) = certificate(names);
            set.add(certified, &facts)?;
        }
        Ok(set)
    }

    #[test]
    fn a_client_gets_the_certificate_for_the_name_it_asks_for() {
        let lists: [&[&str]; 4] = [
            &["127.0.0.1"],
            &["example.com", "*.example.com"],
            &["api.example.com", "example.com"],
            &["*.api.example.com", "Other.Example"],
        ];
        let set = set(&lists).unwrap();
        let shown: Vec<_> =
            [None, Some("example.com"), Some("api.example.com"), Some("other.example")]
                .map(|name| set.of(name).unwrap())
                .into();
        for (name, expected) in [
            ("www.example.com", 1),
            ("WWW.EXAMPLE.COM", 1),
            ("API.example.com", 2),
            ("x.api.example.com", 3),
            ("OTHER.example", 3),
            // A wildcard is for one label.
            ("a.b.example.com", 0),
            ("com", 0),
            ("127.0.0.1", 0),
            ("", 0),
        ] {
            let found = set.of(Some(name)).unwrap();
            assert!(Arc::ptr_eq(&found, &shown[expected]), "{name}");
        }
        let mut different: Vec<_> = shown.iter().map(Arc::as_ptr).collect();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4);
    }

    #[test]
    fn a_certificate_that_no_client_would_get_is_an_error() {
        for (lists, expected) in [
            (&[&["a.example"][..], &["127.0.0.1"]][..], "it has no host name (subjectAltName)"),
            (&[&["a.example"], &["A.example"]], "certificates before it have all of its names"),
        ] {
            let error = set(lists).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(set(&[&["127.0.0.1"], &["a.example"]]).is_ok());
        assert!(set(&[]).unwrap().of(None).is_none());
    }

    #[test]
    fn a_certificate_says_when_it_expires() {
        let facts = certificate(&["a.example"]).1;
        let end = u64::try_from(facts.expires.timestamp()).unwrap();
        assert!(!facts.has_expired(end) && facts.has_expired(end + 1));
        assert!(CertificateFacts::of(&CertificateDer::from(vec![1, 2, 3])).is_err());
    }
}
