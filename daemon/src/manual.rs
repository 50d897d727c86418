//! The manual page rdcpd(1), made from the definition of the arguments, as roff.

use std::io;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Args, EXIT_STATUSES};

/// The page.
pub(crate) fn page() -> io::Result<String> {
    // What stands below the options in the help is a section of its own here.
    let command = Args::command().after_help(None::<&str>);
    let man = Man::new(command).manual("rdcp manual").date("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    own_sections().to_writer(&mut page)?;
    String::from_utf8(page).map_err(io::Error::other)
}

const AUDIT: &str = "With --audit FILE, or audit in the configuration, a line of JSON is appended to the file for each \
    event: daemon_started, daemon_ended, configuration_taken, client_refused (from, key, reason), session_began \
    (session, from, key, software), session_ended (session, from, key, reason), request_began (session, from, key, \
    transfer, request, dry_run, places) and request_ended (the same and result, published, updated, unchanged, \
    deleted, failed, bytes; with a failure kind and reason). All have v (1; it counts up when a field changes its \
    meaning), seq (without gaps from the start of the daemon), time (UTC) and event. request is pull, push, list, \
    stat, sum, remove, make directory or clean; result is done, partly (some entries failed) or failed; places has \
    export, path and, byte by byte, path_b64. The files of a tree are counted, not named. Texts are those of clients \
    where they name something: JSON escapes them, a reader that prints them has to as well. Lines never hold up a \
    copy: if the disk is too slow for long, some are lost, and a line lost (count) says how many. To rotate it, \
    rename it and send SIGHUP.";

/// What the definition of the arguments does not know.
fn own_sections() -> Roff {
    let mut roff = Roff::new();
    let text = EXIT_STATUSES.trim_start_matches("Exit status: ");
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(text)]);
    roff.control("SH", ["SIGNALS"]);
    for (name, what) in [
        (
            "SIGTERM, SIGINT",
            "Take nothing new, let what runs end for drain_seconds, then end. Clients whose copies are cut \
             short by that connect again and go on with the next daemon. A second one ends at once.",
        ),
        (
            "SIGHUP",
            "Read the configuration again, and take all of it or, with an error in the log, nothing: exports, \
             groups, auth, authorized_keys, limits, drain_seconds, log.level. What has changed elsewhere takes a \
             start. Sessions of clients that lose an export or a right by it end at once, with everything that \
             they could read; their clients connect again and go on with what is still theirs. Without --config \
             it ends the daemon as SIGTERM does, because a terminal that closes sends it.",
        ),
        (
            "SIGUSR1",
            "Say in the log what each session and transfer does: entries by state, fetches in flight, \
             windows, credit, connections, and when something moved last. It changes nothing.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(what)]);
    }
    roff.control("SH", ["AUDIT RECORD"]);
    roff.text([roman(AUDIT)]);
    roff.control("SH", ["WHAT IT REMOVES BY ITSELF"]);
    roff.text([roman(
        "Hidden files that copies left in exports that may be written, when it starts and once a day: those \
         that no copy works on, and those that one could go on with once it did not for seven days. 'rdcp \
         clean -n' on such a directory says what is there.",
    )]);
    roff.control("SH", ["FILES"]);
    for (name, what) in [
        (
            "/etc/rdcp/rdcpd.toml",
            "The configuration, where the service reads it. The example that comes with rdcpd explains every key.",
        ),
        (
            "/var/lib/rdcp",
            "The host key, of a service; of others see --state-dir.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(what)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("rdcp(1), systemd.service(5)")]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option_and_status() {
        let page = page().expect("it can be made").replace("\\-", "-");
        for argument in Args::command().get_arguments() {
            if let Some(long) = argument.get_long() {
                assert!(page.contains(&format!("--{long}")), "--{long}");
            }
        }
        assert!(page.contains(".TH rdcpd 1"), "{page}");
        assert!(page.contains("7 the state directory or") && page.contains("rdcp(1)"));
        assert!(page.contains("SIGUSR1"), "{page}");
    }
}
