//! What a server offers, and to whom: its exports, who is let in, how many. Replaced as a whole when the
//! server is told something else.
//!
//! In: what a client is and what it names. Out: an export in which it may do that, or the reason why there is
//! none. Nothing here knows sessions or messages.

use std::sync::Arc;

use crate::server::ServerLimits;

use crate::session::clients::{Admission, Audience, Client, Right, Rights};
use crate::storage::Root;
use crate::wire::message::{HashKind, RemotePath};
use crate::wire::{Fault, FaultCode};

/// An export, open.
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) root: Arc<Root>,
    /// What anybody may do there at most.
    pub(crate) rights: Rights,
    pub(crate) audience: Audience,
    /// Whether what no digest proves may be copied.
    pub(crate) unverified: bool,
}

impl Exported {
    /// Whether it allows this to a client that may see it, and so does the client's key.
    pub(crate) fn lets(&self, client: &Client, right: Right) -> bool {
        self.rights.has(right) && client.may(right)
    }

    /// What a client that may see it may do there.
    pub(crate) fn rights_of(&self, client: &Client) -> Rights {
        self.rights.and(client.rights())
    }

    /// Refuses what no digest proves, where that may not be copied.
    pub(crate) fn admits(&self, hash: HashKind) -> Result<(), Fault> {
        if self.unverified || hash != HashKind::None {
            return Ok(());
        }
        let text = format!(
            "export '{}' lets nothing be copied unverified: no --hash none, no held regions",
            self.name
        );
        Err(Fault::new(FaultCode::Denied, text))
    }

    fn is_shown_to(&self, client: &Client) -> bool {
        client.sees(&self.name) && self.audience.has(client)
    }
}

/// What a server offers from some moment on.
pub(crate) struct Offered {
    pub(crate) exports: Vec<Arc<Exported>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tls: Arc<rustls::ServerConfig>,
    pub(crate) limits: ServerLimits,
}

impl Offered {
    /// Finds what a client named, if it may do that there.
    pub(crate) fn export(
        &self,
        client: &Client,
        path: &RemotePath,
        right: Right,
    ) -> Result<Arc<Exported>, Fault> {
        let mut visible = self.visible(client);
        let found = visible.find(|export| export.name == path.export);
        let Some(export) = found else {
            let names: Vec<_> = self.visible(client).map(|e| e.name.as_str()).collect();
            let text = format!(
                "no export is called '{}'; there are: {}",
                path.export.escape_debug(),
                names.join(", ")
            );
            return Err(Fault::new(FaultCode::NotFound, text));
        };
        if !export.rights.has(right) {
            let name = &export.name;
            let text = match export.rights.change() {
                false if !matches!(right, Right::List | Right::Read) => {
                    format!("export '{name}' is read-only")
                }
                _ => format!(
                    "export '{name}' gives nobody the right to {right}, only: {}",
                    export.rights
                ),
            };
            return Err(Fault::new(FaultCode::Denied, text));
        }
        if !client.may(right) {
            let text = format!(
                "this client's key has no right to {right} on this server: its line among the \
                 authorized keys says what it may do"
            );
            return Err(Fault::new(FaultCode::Denied, text));
        }
        Ok(Arc::clone(export))
    }

    /// The exports that a client may know of.
    pub(crate) fn visible(&self, client: &Client) -> impl Iterator<Item = &Arc<Exported>> {
        self.exports
            .iter()
            .filter(|export| export.is_shown_to(client))
    }

    /// Whether a client may know of what all others do.
    pub(crate) fn trusts(&self, client: &Client) -> bool {
        client.may_all() && self.visible(client).count() == self.exports.len()
    }

    /// Takes over the open directories of `earlier` that are still meant: whoever compares the two sees what
    /// has changed, and what has not keeps its descriptor.
    pub(crate) fn keep_directories(&mut self, earlier: &Self) {
        for export in &mut self.exports {
            let same = earlier
                .exports
                .iter()
                .find(|old| old.name == export.name && old.root.is_same_directory(&export.root));
            if let Some(old) = same {
                *export = Arc::new(Exported {
                    name: export.name.clone(),
                    root: Arc::clone(&old.root),
                    rights: export.rights,
                    audience: export.audience.clone(),
                    unverified: export.unverified,
                });
            }
        }
    }

    /// An export that a client has in `self` and in `later` not any more, or not with all that it may do there
    /// now. What is new, or more, takes nothing from anybody.
    pub(crate) fn loses(&self, client: &Client, later: &Self) -> Option<&str> {
        let is_kept = |old: &Exported| {
            later.visible(client).any(|new| {
                old.name == new.name
                    && Arc::ptr_eq(&old.root, &new.root)
                    && (!old.unverified || new.unverified)
                    && old.rights_of(client).are_in(new.rights_of(client))
            })
        };
        let lost = self.visible(client).find(|export| !is_kept(export));
        lost.map(|export| export.name.as_str())
    }
}
