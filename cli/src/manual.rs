//! Manual pages and completion scripts, made from the definition of the arguments, and one from
//! the text that the repository shows as Markdown.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::args::{self, Cli};
use crate::exit;

/// Failures of other programs, and what is done here instead: both a file to be read and rdcp-failures(1).
const FAILURES: &str = include_str!("../../FAILURES.md");
/// What that page is called by who asks for it.
const FAILURES_NAME: &str = "failures";

/// The completion script of a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rdcp", &mut script);
    script
}

/// One page as roff: rdcp(1), that of a command, or that of failures. `None` if there is no such page.
pub(crate) fn page(command: Option<&str>) -> Option<Vec<u8>> {
    if command == Some(FAILURES_NAME) {
        return failures().ok();
    }
    let pages = commands();
    let name = command.map_or_else(|| "rdcp".to_owned(), |command| format!("rdcp-{command}"));
    let page = pages.iter().find(|page| page.get_name() == name)?;
    // Writing into memory can't fail.
    render(page).ok()
}

/// What of the manual was written.
pub(crate) struct Written {
    /// Pages, all in all.
    pub(crate) pages: usize,
    /// Why the daemon's is not among them.
    pub(crate) daemon: Result<(), String>,
}

/// Writes all pages into a directory. That of the daemon comes from the `rdcpd` beside this program, if
/// there is one: only it knows its options.
pub(crate) fn write_all(directory: &Path) -> io::Result<Written> {
    let pages = write_pages(directory)?;
    let daemon = match daemon_page() {
        Ok(page) => {
            std::fs::write(directory.join("rdcpd.1"), page)?;
            Ok(())
        }
        Err(reason) => Err(reason),
    };
    let pages = pages + usize::from(daemon.is_ok());
    Ok(Written { pages, daemon })
}

fn daemon_page() -> Result<Vec<u8>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let daemon = own.with_file_name("rdcpd");
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", daemon.display());
    let output = std::process::Command::new(&daemon)
        .arg("--man")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| failed(&error))?;
    if output.status.success() && !output.stdout.is_empty() {
        Ok(output.stdout)
    } else {
        Err(failed(&output.status))
    }
}

fn write_pages(directory: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let pages = commands();
    for page in &pages {
        std::fs::write(
            directory.join(format!("{}.1", page.get_name())),
            render(page)?,
        )?;
    }
    std::fs::write(directory.join("rdcp-failures.1"), failures()?)?;
    Ok(pages.len() + 1)
}

/// rdcp-failures(1), of that section so that one directory holds all pages. Of Markdown it knows what that text uses: headings, paragraphs, items that begin with
/// a word and a colon, and words in backquotes.
fn failures() -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("TH", ["rdcp-failures", "1", "", "", "rdcp manual"]);
    // Names of tests are long; lines that can't be filled look worse than ragged ones.
    roff.control("ad", ["l"]);
    roff.control("nh", []);
    roff.control("SH", ["NAME"]);
    roff.text([roman(
        "rdcp-failures - failures of other programs, and what rdcp does",
    )]);
    roff.control("SH", ["DESCRIPTION"]);
    for block in blocks(FAILURES) {
        if block.starts_with("# ") {
            continue;
        }
        if let Some(heading) = block.strip_prefix("## ") {
            roff.control("SH", [heading.to_uppercase().as_str()]);
        } else if let Some(heading) = block.strip_prefix("### ") {
            roff.control("SS", [heading]);
        } else if let Some((label, text)) = block
            .strip_prefix("- ")
            .and_then(|item| item.split_once(": "))
        {
            roff.control("TP", []);
            roff.text([bold(label)]);
            roff.text(words(text));
        } else {
            roff.control("PP", []);
            roff.text(words(&block));
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("rdcp(1), rdcpd(1)")]);
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Headings, items and paragraphs, each in one line.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut begins = true;
    for line in markdown.lines() {
        let text = line.trim();
        begins |= line.starts_with(['#', '-']);
        if text.is_empty() {
            begins = true;
        } else if begins {
            blocks.push(text.to_owned());
            begins = line.starts_with('#');
        } else if let Some(block) = blocks.last_mut() {
            block.push(' ');
            block.push_str(text);
        }
    }
    blocks
}

/// What stands in backquotes is bold.
fn words(text: &str) -> Vec<Inline> {
    let pieces = text.split('`').enumerate();
    pieces
        .map(|(number, piece)| match number % 2 {
            0 => roman(piece),
            _ => bold(piece),
        })
        .collect()
}

/// The command and its commands, each under the name of its page.
fn commands() -> Vec<Command> {
    let mut top = Cli::command().disable_help_subcommand(true);
    // Global options and "rdcp pull" in usage lines come with the build.
    top.build();
    let below = top.get_subcommands().map(|command| {
        let name = format!("rdcp-{}", command.get_name());
        // Their help has examples and statuses behind it; the page has sections for these.
        command
            .clone()
            .name(name)
            .after_long_help(None::<&str>)
            .after_help(None::<&str>)
    });
    let below = below.collect::<Vec<_>>();
    let top = top.after_long_help(None::<&str>).after_help(None::<&str>);
    std::iter::once(top).chain(below).collect()
}

fn render(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone()).manual("rdcp manual").date("");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    own_sections(command.get_name()).to_writer(&mut page)?;
    Ok(page)
}

/// The usage line as help shows it; a list of all options says less.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage
        .trim_start_matches("Usage: ")
        .trim_end()
        .replace("rdcp-", "rdcp ");
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(usage)]);
    roff
}

/// What the definition of the arguments does not know.
fn own_sections(name: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit::TABLE {
        roff.control("TP", ["5"]);
        roff.text([bold(code.to_string())]);
        roff.text([roman(*meaning)]);
    }
    roff.control("SH", ["SIGNALS"]);
    for (name, what) in [
        (
            "SIGINT, SIGTERM",
            "End in order, so that the same command goes on from there; a second one ends at once.",
        ),
        (
            "SIGUSR1",
            "Say on standard error what each session and transfer does: entries by state, fetches in \
             flight, windows, credit, connections, and when something moved last. It changes nothing.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(what)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in args::examples(name.trim_start_matches("rdcp-")).lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["FILES"]);
    roff.control("TP", []);
    roff.text([bold("~/.config/rdcp/known_hosts")]);
    roff.text([roman("Keys of the hosts that are trusted, one a line.")]);
    roff.control("TP", []);
    roff.text([bold("~/.config/rdcp/identity.pem")]);
    roff.text([roman("Your own key, as rdcp keygen makes it.")]);
    roff.control("SH", ["SEE ALSO"]);
    let also = match name {
        "rdcp" => "rdcpd(1), rdcp-failures(1), b3sum(1), sha256sum(1)",
        _ => "rdcp(1), rdcpd(1)",
    };
    roff.text([roman(also)]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn completions_exist_for_every_shell() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell)).unwrap();
            for word in ["rdcp", "verify", "known-hosts", "mkpath"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn pages_mention_every_option_and_status() {
        for command in commands() {
            let name = command.get_name().trim_start_matches("rdcp-");
            let page = page((name != "rdcp").then_some(name)).expect(name);
            let page = String::from_utf8(page).unwrap().replace("\\-", "-");
            for argument in command.get_arguments() {
                if let Some(long) = argument.get_long() {
                    assert!(page.contains(&format!("--{long}")), "{name}: --{long}");
                }
            }
            for (code, meaning) in exit::TABLE {
                assert!(page.contains(&code.to_string()), "{name}: {code}");
                assert!(
                    page.contains(&meaning.replace('\'', "\\*(Aq")),
                    "{name}: {meaning}"
                );
            }
            assert!(page.contains(".SH EXAMPLES"), "{name}");
            assert!(page.contains("SIGUSR1"), "{name}");
        }
    }

    #[test]
    fn the_page_of_failures_has_all_of_the_text() {
        let page = String::from_utf8(page(Some(FAILURES_NAME)).unwrap()).unwrap();
        assert_eq!(
            page.matches(".SS ").count(),
            FAILURES.matches("\n### ").count()
        );
        assert_eq!(
            page.matches(".TP").count(),
            FAILURES.matches("\n- ").count()
        );
        assert!(!page.contains('`'), "{page}");
        let plain = |text: &str| text.replace("\\-", "-").replace("\\*(Aq", "'");
        let plain = plain(&page).replace("\\fB", "").replace("\\fR", "");
        for block in blocks(FAILURES) {
            let block = block.trim_start_matches(['#', '-', ' ']).replace('`', "");
            let text = block
                .split_once(": ")
                .map_or(block.as_str(), |(_, text)| text);
            let is_there = plain.contains(text) || plain.contains(&text.to_uppercase());
            assert!(
                is_there || block.starts_with("Failures elsewhere"),
                "{text}"
            );
        }
    }

    #[test]
    fn all_pages_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let count = write_pages(directory.path()).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), count);
        assert!(directory.path().join("rdcp-pull.1").exists());
        assert!(directory.path().join("rdcp-failures.1").exists());
        assert!(page(Some("nothing")).is_none());
    }
}
