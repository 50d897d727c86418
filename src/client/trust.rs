//! Which server a client takes for the right one, and why it took none.
//!
//! In: what the user chose, what came of connecting. Out: the rule about keys, whether another try makes
//! sense, and the error with what mends it. It opens no connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity;
use crate::error::{Error, ErrorKind};
use crate::options::UnknownHost;
use crate::session::control::ControlError;
use crate::session::known_hosts::{HostDecision, HostPolicy, HostPort, HostTrust};
use crate::session::own_key::Fingerprint;
use crate::wire::FaultCode;

pub(super) fn known_hosts_file(chosen: Option<PathBuf>) -> Result<PathBuf, Error> {
    if let Some(path) = chosen {
        return Ok(path);
    }
    let directory = identity::config_directory().ok_or_else(|| {
        let message = "there is no place for the keys of known hosts: neither HOME nor \
                       XDG_CONFIG_HOME is set";
        Error::new(ErrorKind::Usage, message)
            .with_hint("set HOME, or name a file: --known-hosts FILE")
    })?;
    Ok(directory.join("known_hosts"))
}

pub(super) fn policy(unknown: UnknownHost) -> HostPolicy {
    match unknown {
        UnknownHost::Refuse => Arc::new(|_| HostDecision::Refuse),
        UnknownHost::AcceptNew => Arc::new(|_| HostDecision::Remember),
        UnknownHost::Ask(ask) => Arc::new(move |trust| {
            if ask(trust) {
                HostDecision::Remember
            } else {
                HostDecision::Refuse
            }
        }),
    }
}

/// Accepts the key that was shown before, even if it is written down nowhere, and no other.
pub(super) fn known_only(known: Fingerprint) -> HostPolicy {
    Arc::new(move |trust| match trust {
        HostTrust::Unknown { fingerprint } if *fingerprint == known => HostDecision::AcceptOnce,
        _ => HostDecision::Refuse,
    })
}

/// Whether a server that was there may be there again: it is being started, has too much to do for now,
/// or the network is down. What speaks another language, or shows another key, stays what it is.
pub(super) fn may_pass(error: &ControlError) -> bool {
    let passes = [FaultCode::Lost, FaultCode::TimedOut, FaultCode::Busy];
    passes.contains(&error.to_fault().class())
}

/// The public error for a control connection that was not made.
pub(super) fn refused(host: &HostPort, error: ControlError) -> Error {
    let hint = match &error {
        ControlError::Lookup { .. } => {
            Some("is it spelt right? An address can be written in its place".to_owned())
        }
        ControlError::Connect { .. } => {
            Some("is rdcpd running there, and is the port right?".to_owned())
        }
        ControlError::TimedOut { .. } => Some(
            "something takes connections on that port and does not answer: another program, or an \
             rdcpd that is stuck"
                .to_owned(),
        ),
        ControlError::HostUnknown { .. } => Some(
            "compare the fingerprint with the one in the daemon's log; --accept-new pins it"
                .to_owned(),
        ),
        ControlError::HostChanged { written, .. } => Some(format!(
            "another machine may be answering; if the new key is right, remove the old one, and the \
             host is asked about as a new one: {}",
            removal(&written.file, &written.lines)
        )),
        ControlError::NotRdcp | ControlError::Tls(_) => {
            Some("something else may be listening on that port".to_owned())
        }
        _ => None,
    };
    let kind = ErrorKind::of_fault(error.to_fault().class());
    let message = match &error {
        ControlError::Lookup { .. }
        | ControlError::Connect { .. }
        | ControlError::HostUnknown { .. }
        | ControlError::HostChanged { .. } => error.to_string(),
        // These don't know whom they are about.
        ControlError::Refused(fault) => format!("{host}: {}", fault.text),
        other => format!("{host}: {other}"),
    };
    let mut public = Error::new(kind, message);
    if let Some(hint) = hint {
        public = public.with_hint(hint);
    }
    match error {
        ControlError::Connect { source, .. } => public.with_source(source),
        ControlError::Tls(source) | ControlError::Lost(source) => public.with_source(source),
        ControlError::KnownHosts(source) => public.with_source(source),
        _ => public,
    }
}

/// The command that removes lines of a file, for a shell.
fn removal(file: &Path, lines: &[usize]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}d")).collect();
    let file = file.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&byte);
    let file = if file.bytes().all(plain) {
        file.into_owned()
    } else {
        format!("'{}'", file.replace('\'', r"'\''"))
    };
    format!("sed -i '{}' {file}", lines.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_removes_a_key_can_be_pasted() {
        let shown = |file: &str, lines: &[usize]| removal(Path::new(file), lines);
        assert_eq!(shown("/h/known_hosts", &[3]), "sed -i '3d' /h/known_hosts");
        assert_eq!(
            shown("/it's here/k", &[1, 12]),
            r"sed -i '1d;12d' '/it'\''s here/k'"
        );
    }
}
