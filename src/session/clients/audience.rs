//! Whom an export is for. Pure.

use super::Client;
use crate::session::own_key::Fingerprint;
use crate::session::rails::network::IpNetwork;

/// Whom an export is for. Whoever it is not for is answered as if it were not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audience {
    /// Clients that proved one of these; `None`: all that are let in.
    pub(crate) keys: Option<Vec<Fingerprint>>,
    /// Clients that come from here; none: from anywhere.
    pub(crate) networks: Vec<IpNetwork>,
}

impl Audience {
    pub(crate) fn has(&self, client: &Client) -> bool {
        let from = client.from();
        let is_near =
            self.networks.is_empty() || self.networks.iter().any(|net| net.contains(from));
        let is_known = self
            .keys
            .as_ref()
            .is_none_or(|keys| client.key.as_ref().is_some_and(|key| keys.contains(key)));
        is_near && is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: Option<&str>, from: &str) -> Client {
        Client {
            key: key.map(|key| key.parse().unwrap()),
            from: from.parse().unwrap(),
            grant: None,
        }
    }

    const ADA: &str = "SHA256:gb8L4eyoDDUOYyKxPGGLSXbqFHVNEYQeAtWT1Fpsxyg";
    const BOB: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    #[test]
    fn an_export_is_for_all_unless_it_says_otherwise() {
        assert!(Audience::default().has(&client(None, "203.0.113.9")));
    }

    #[test]
    fn keys_and_networks_both_have_to_fit() {
        let audience = Audience {
            keys: Some(vec![ADA.parse().unwrap()]),
            networks: vec!["10.0.0.0/8".parse().unwrap()],
        };
        assert!(audience.has(&client(Some(ADA), "10.1.2.3")));
        // A client of an address family socket that shows IPv4 as IPv6.
        assert!(audience.has(&client(Some(ADA), "::ffff:10.1.2.3")));
        assert!(!audience.has(&client(Some(ADA), "11.1.2.3")));
        assert!(!audience.has(&client(Some(BOB), "10.1.2.3")));
        assert!(!audience.has(&client(None, "10.1.2.3")));
    }

    #[test]
    fn a_list_of_no_keys_is_for_nobody() {
        let audience = Audience {
            keys: Some(Vec::new()),
            networks: Vec::new(),
        };
        assert!(!audience.has(&client(Some(ADA), "10.1.2.3")));
    }
}
