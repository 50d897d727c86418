//! `rdcp keygen`: the user's own key, and the line by which servers know it.

use std::path::Path;

use rdcp::client::Identity;

use super::fail;
use crate::escape;
use crate::exit::End;
use crate::output::Output;

pub(super) fn keygen(file: Option<&Path>, output: &mut Output) -> End {
    let identity = match Identity::load_or_create(file) {
        Ok(identity) => identity,
        Err(error) => return fail(output, &error),
    };
    let key = &identity.fingerprint;
    let path = escape::text(&identity.path.to_string_lossy());
    if identity.is_new {
        output.remark(&format!("made {path}; keep it to yourself"));
    }
    output.remark(&format!(
        "add this line to the server's authorized keys, or start it by hand with --authorize {key}"
    ));
    output.io().stdout.line(&format!("{key} {}", whose()));
    End::DONE
}

/// A comment that tells a reader of the server's list whose line it is.
fn whose() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let text = format!("{}@{host}", user.as_deref().unwrap_or("rdcp"));
    let plain = |letter: &char| letter.is_ascii_graphic();
    text.chars().filter(plain).collect()
}
