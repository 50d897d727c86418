//! Who a client is, and what it may do.
//!
//! In: the key that a client proved to hold and the address it comes from; the files that list keys.
//! Out: a [`Client`], which answers for each export what is allowed there. Nothing here knows paths
//! below an export, messages or TLS.

mod audience;
mod authorized;
mod line;
mod rights;

use std::net::IpAddr;
use std::sync::Arc;

pub(crate) use audience::Audience;
pub(crate) use authorized::{AuthorizedKeys, AuthorizedKeysError};
pub(crate) use line::{Grant, parse as parse_line};
pub(crate) use rights::{Right, Rights};

use crate::ids::TransferId;
use crate::session::own_key::Fingerprint;

/// Whom a server lets in.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Everybody who reaches it.
    Everybody,
    /// Who proves a key that is listed.
    Keys(AuthorizedKeys),
}

/// A client that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// The key that it proved, where keys are asked for.
    pub(crate) key: Option<Fingerprint>,
    /// Where it comes from.
    from: IpAddr,
    grant: Option<Arc<Grant>>,
}

/// Why a client is not let in, in words for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

impl Admission {
    /// Whether there is a list that is read again.
    pub(crate) fn may_change(&self) -> bool {
        matches!(self, Self::Keys(keys) if keys.has_file())
    }

    /// Lets a client in that comes from `from` and proved `key`, if it proved one.
    pub(crate) fn admit(&self, key: Option<Fingerprint>, from: IpAddr) -> Result<Client, Refused> {
        let Self::Keys(keys) = self else {
            return Ok(Client {
                key: None,
                from,
                grant: None,
            });
        };
        let Some(key) = key else {
            let text = "this server asks its clients for a key, and none was shown: make one with \
                        'rdcp keygen' and have the line that it prints added to the server's \
                        authorized keys";
            return Err(Refused(text.to_owned()));
        };
        match keys.find(&key, from, jiff::Timestamp::now()) {
            Some(grant) => Ok(Client {
                key: Some(key),
                from,
                grant: Some(grant),
            }),
            // That it is listed for other addresses or other times is nobody's business.
            None => Err(Refused(format!(
                "the key {key} is not among those that this server lets in from here: have the \
                 line that 'rdcp keygen' prints added to the server's authorized keys"
            ))),
        }
    }
}

impl Client {
    /// One of its transfers, as it is called to others. Where keys are asked for, where it comes from is
    /// nobody's business; elsewhere a transfer's number is good for taking its place.
    pub(crate) fn shown(&self, transfer: TransferId) -> String {
        match self.key {
            Some(_) => format!("transfer {transfer} of another session"),
            None => format!("a client at {}", self.from()),
        }
    }

    /// Where it comes from.
    pub(crate) fn from(&self) -> IpAddr {
        self.from.to_canonical()
    }

    /// Whether it may know that an export is there.
    pub(crate) fn sees(&self, export: &str) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.names(export))
    }

    /// Whether it may do everything in every export. What tells of other clients takes that.
    pub(crate) fn may_all(&self) -> bool {
        self.grant.as_ref().is_none_or(|grant| grant.is_whole())
    }

    /// Whether the key's line allows this. The export may forbid it all the same.
    pub(crate) fn may(&self, right: Right) -> bool {
        self.rights().has(right)
    }

    /// What the key's line allows.
    pub(crate) fn rights(&self) -> Rights {
        self.grant
            .as_ref()
            .map_or(Rights::ALL, |grant| grant.rights)
    }
}
