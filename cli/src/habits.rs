//! Options of rsync, scp and cp that rdcp does not have: what it does instead.
//!
//! A refused word of a command line goes in, a sentence comes out. It decides nothing: the word is an
//! error either way.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to do instead of an option that a copy was given and does not know.
pub(crate) fn tip(args: &[OsString], error: &clap::Error) -> Option<&'static str> {
    let copies = ["pull", "push", "cp"];
    let command = args.iter().skip(1).find_map(|word| {
        let word = word.to_str()?;
        (!word.starts_with('-')).then_some(word)
    })?;
    if error.kind() != ErrorKind::UnknownArgument || !copies.contains(&command) {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = option.split('=').next().unwrap_or_default();
    TIPS.iter()
        .find(|(options, _)| options.contains(&option))
        .map(|(_, tip)| *tip)
}

const TIPS: &[(&[&str], &str)] = &[
    (
        &["-z", "--compress"],
        "contents are not compressed on the way; leave it out",
    ),
    (
        &["-P", "--partial", "--partial-dir", "--append"],
        "the same command again goes on where an interrupted one ended, in the middle of a file too, and \
         a terminal shows how far a copy is; leave it out",
    ),
    (
        &["--progress", "--info"],
        "a terminal shows how far a copy is; --json tells it to programs",
    ),
    (
        &[
            "--del",
            "--delete-after",
            "--delete-before",
            "--delete-delay",
            "--delete-during",
        ],
        "write --delete; it is done last, and only if nothing failed",
    ),
    (
        &["--delete-excluded"],
        "what is left out stays at the destination; 'rdcp rm' removes it on a server",
    ),
    (
        &["--remove-source-files"],
        "a source is never changed; compare with 'rdcp verify LOCAL REMOTE', then remove it",
    ),
    (
        &["--filter", "-f", "--exclude-from", "--include-from"],
        "write --exclude and --include, or a file of such rules with --filter-from",
    ),
    (
        &["-F", "--files-from", "-C", "--cvs-exclude"],
        "name what you want as sources, or leave out the rest with --exclude and --filter-from",
    ),
    (
        &["-e", "--rsh"],
        "write ssh://[user@]host/absolute/path, and how to log in with --ssh COMMAND",
    ),
    (&["-t", "--times"], "times are always carried; leave it out"),
    (
        &[
            "-l",
            "--links",
            "-H",
            "--hard-links",
            "-A",
            "--acls",
            "-X",
            "--xattrs",
            "-o",
            "--owner",
            "-g",
            "--group",
        ],
        "-a carries links, modes, user attributes, ACLs, and owners where that is allowed",
    ),
    (
        &["-D", "--devices", "--specials"],
        "devices, FIFOs and sockets are never copied; leave it out",
    ),
    (
        &["-x", "--one-file-system"],
        "other mounts are never entered; leave it out",
    ),
    (
        &["-i", "--itemize-changes", "--stats"],
        "-v sums a copy up; --json tells what becomes of each entry, and -n what would",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};

    fn tip_of(line: &str) -> Option<&'static str> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let error = Cli::try_parse_from(&words).expect_err(line);
        tip(&words, &error)
    }

    #[test]
    fn options_of_others_have_tips_where_they_could_be_meant() {
        for (line, part) in [
            ("rdcp push -avz a h:/e", "compressed"),
            ("rdcp -v push --delete-excluded a h:/e", "rdcp rm"),
            ("rdcp pull --filter=x h:/e/a .", "--filter-from"),
            ("rdcp cp -aP h:/e/a .", "again"),
        ] {
            let tip = tip_of(line).expect(line);
            assert!(tip.contains(part), "{line}: {tip}");
        }
        for line in ["rdcp ls -z h:/e", "rdcp push --frob a h:/e", "rdcp pull"] {
            assert_eq!(tip_of(line), None, "{line}");
        }
    }

    #[test]
    fn no_tip_is_about_an_option_that_is_there() {
        let top = Cli::command();
        let commands = ["pull", "push", "cp"].map(|name| top.find_subcommand(name));
        for command in commands.into_iter().flatten() {
            for argument in command.get_arguments() {
                let long = argument.get_long().map(|long| format!("--{long}"));
                let short = argument.get_short().map(|short| format!("-{short}"));
                for option in [long, short].into_iter().flatten() {
                    let known = TIPS.iter().any(|(all, _)| all.contains(&option.as_str()));
                    assert!(!known, "{option}");
                }
            }
        }
    }
}
