//! Identity for requests that come from elsewhere than HTTP, such as from a log: where a policy reads which attribute, and whose
//! address counts.

use super::{Identity, SourcePlace};
use crate::model::address::HopHeader;
use std::net::IpAddr;

impl Identity {
    /// The address by which a request is counted: that of the peer, or of the client that trusted peers name in `hops`, the values
    /// of [`Identity::hop_header`].
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// identity: { trusted: [10.0.0.0/8] }
    /// rules: [{ name: a, key: [ip], limits: [15/s] }]
    /// ").unwrap();
    /// let peer = "10.0.0.1".parse().unwrap();
    /// let client = policy.identity().client(peer, ["forged, 203.0.113.7"]);
    /// assert_eq!(client.to_string(), "203.0.113.7");
    /// ```
    pub fn client<'h>(&self, peer: IpAddr, hops: impl IntoIterator<Item = &'h str>) -> IpAddr {
        self.trusted.client(peer, hops)
    }

    /// The header field in which trusted peers name the client.
    ///
    /// ```
    /// use tidegate_policy::{HopHeader, Identity};
    /// assert_eq!(Identity::default().hop_header(), HopHeader::XForwardedFor);
    /// ```
    #[must_use]
    pub const fn hop_header(&self) -> HopHeader {
        self.header
    }

    /// The attributes that the policy reads from requests, each with its source as the policy names it.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// identity: { user: 'header:x-user-id' }
    /// rules: [{ name: a, key: [user], limits: [15/s] }]
    /// ").unwrap();
    /// let sources: Vec<_> = policy.identity().sources().collect();
    /// assert_eq!(sources, [("user", "header:x-user-id".to_owned())]);
    /// ```
    pub fn sources(&self) -> impl Iterator<Item = (&str, String)> {
        self.sources.iter().map(|(name, source)| (&**name, source.place.named()))
    }
}

impl SourcePlace {
    /// The source as a policy names it.
    fn named(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::Cookie(name) => format!("cookie:{name}"),
            Self::Query(name) => format!("query:{name}"),
            Self::WholeQuery => "query".to_owned(),
            Self::Jwt(claim) => format!("jwt:{claim}"),
            Self::Auth(name) => format!("auth:{name}"),
        }
    }
}
