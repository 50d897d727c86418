//! One line of a file of authorized keys. Pure.
//!
//! ```text
//! SHA256:gb8L4eyoDDUOYyKxPGGLSXbqFHVNEYQeAtWT1Fpsxyg  backup host
//! export="results",rights="read" SHA256:...  a reader
//! from="10.0.0.0/8,fd00::/8",expires="2027-01-31" SHA256:...
//! ```
//!
//! A key is written as its fingerprint: whoever is let in has proved in the handshake to hold it.
//! What stands before it, without spaces outside of quotes, limits what it is good for; what stands
//! behind it is a comment.

use std::net::IpAddr;

use jiff::Timestamp;

use super::rights::Rights;
use crate::session::own_key::Fingerprint;
use crate::session::rails::network::IpNetwork;

/// What a listed key is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The exports that it may see; `None`: all.
    exports: Option<Vec<String>>,
    pub(crate) rights: Rights,
    /// Where it must come from; none: anywhere.
    from: Vec<IpNetwork>,
    /// From when on it is good for nothing.
    expires: Option<Timestamp>,
}

impl Grant {
    /// A key that is good for everything, from everywhere, for ever.
    pub(crate) const WHOLE: Self = Self {
        exports: None,
        rights: Rights::ALL,
        from: Vec::new(),
        expires: None,
    };

    pub(crate) fn names(&self, export: &str) -> bool {
        match &self.exports {
            Some(exports) => exports.iter().any(|name| name == export),
            None => true,
        }
    }

    /// Whether it names every export and every right.
    pub(crate) fn is_whole(&self) -> bool {
        self.exports.is_none() && self.rights == Rights::ALL
    }

    /// Whether it counts for one who comes from there, then.
    pub(crate) fn counts(&self, from: IpAddr, now: Timestamp) -> bool {
        let from = from.to_canonical();
        let is_near = self.from.is_empty() || self.from.iter().any(|net| net.contains(from));
        is_near && self.expires.is_none_or(|end| now < end)
    }
}

/// Reads a line; `None` if it is empty or a comment. What is wrong with it can be shown at a terminal.
pub(crate) fn parse(line: &str) -> Result<Option<(Fingerprint, Grant)>, String> {
    read(line).map_err(|wrong| {
        let plain = |letter: char| match letter {
            '\'' | '"' | '\\' => letter.to_string(),
            _ => letter.escape_debug().to_string(),
        };
        wrong.chars().map(plain).collect()
    })
}

fn read(line: &str) -> Result<Option<(Fingerprint, Grant)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (first, rest) = first_word(line)?;
    if let Ok(key) = first.parse() {
        return without_options(rest).map(|()| Some((key, Grant::WHOLE)));
    }
    let (second, comment) = first_word(rest.trim_start())?;
    without_options(comment)?;
    let key = second.parse::<Fingerprint>().map_err(|_| {
        "no key: a line is [OPTIONS] SHA256:... [COMMENT], as 'rdcp keygen' prints it".to_owned()
    })?;
    Ok(Some((key, parse_options(first)?)))
}

/// Who writes options where a comment stands means to limit the key.
fn without_options(comment: &str) -> Result<(), String> {
    let names = ["export=", "rights=", "from=", "expires="];
    if names.iter().any(|name| comment.contains(name)) {
        return Err("options stand before the key, not behind it".to_owned());
    }
    Ok(())
}

/// Up to the first space outside of quotes.
fn first_word(text: &str) -> Result<(&str, &str), String> {
    let mut quoted = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => return Ok(text.split_at(at)),
            _ => {}
        }
    }
    if quoted {
        return Err("a quote is not closed".to_owned());
    }
    Ok((text, ""))
}

fn parse_options(text: &str) -> Result<Grant, String> {
    let mut grant = Grant::WHOLE;
    let mut seen: Vec<&str> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let shape = || {
            let rest = rest.escape_debug();
            format!("`{rest}` is no option: write NAME=\"VALUE\", with commas between several")
        };
        let (name, after) = rest.split_once("=\"").ok_or_else(shape)?;
        let (value, after) = after.split_once('"').ok_or_else(shape)?;
        if seen.contains(&name) {
            return Err(format!("`{name}` is said twice"));
        }
        seen.push(name);
        set(&mut grant, name, value)?;
        rest = match after.strip_prefix(',') {
            Some(more) if !more.is_empty() => more,
            None if after.is_empty() => "",
            _ => return Err(shape()),
        };
    }
    Ok(grant)
}

fn set(grant: &mut Grant, name: &str, value: &str) -> Result<(), String> {
    match name {
        "export" => {
            let names: Vec<_> = value.split(',').map(str::to_owned).collect();
            if names.iter().any(String::is_empty) {
                return Err("`export` names nothing: write export=\"a,b\"".to_owned());
            }
            grant.exports = Some(names);
        }
        "rights" => grant.rights = value.parse()?,
        "from" => {
            grant.from = value
                .split(',')
                .map(IpNetwork::or_address)
                .collect::<Result<_, _>>()?
        }
        "expires" => grant.expires = Some(time(value)?),
        other => {
            let other = other.escape_debug();
            return Err(format!(
                "`{other}` is no option: there are export, rights, from and expires"
            ));
        }
    }
    Ok(())
}

/// A day, at whose beginning in UTC it is over, or a moment.
fn time(text: &str) -> Result<Timestamp, String> {
    let whole = match text.len() {
        10 => format!("{text}T00:00:00Z"),
        _ => text.to_owned(),
    };
    whole.parse().map_err(|_| {
        let text = text.escape_debug();
        format!("`{text}` is no time: write 2027-01-31 or 2027-01-31T18:00:00Z")
    })
}

#[cfg(test)]
mod tests {
    use super::super::rights::Right;
    use super::*;

    const KEY: &str = "SHA256:gb8L4eyoDDUOYyKxPGGLSXbqFHVNEYQeAtWT1Fpsxyg";

    fn grant(options: &str) -> Result<Grant, String> {
        parse(&format!("{options} {KEY} a comment")).map(|line| line.unwrap().1)
    }

    #[test]
    fn a_key_alone_is_good_for_everything() {
        for line in [
            KEY.to_owned(),
            format!("  {KEY}\r"),
            format!("{KEY} host \"x"),
        ] {
            // A comment may hold any quote.
            let (key, grant) = parse(&line).unwrap().unwrap();
            assert_eq!(key.to_string(), KEY);
            assert_eq!(grant, Grant::WHOLE);
        }
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("  # a remark").unwrap(), None);
    }

    #[test]
    fn options_limit_it() {
        let grant = grant(
            "export=\"a,b.c\",rights=\"read\",from=\"10.0.0.0/8,::1\",expires=\"2027-01-31\"",
        )
        .unwrap();
        assert!(grant.names("a") && grant.names("b.c") && !grant.names("c"));
        assert!(grant.rights.has(Right::Read) && !grant.rights.has(Right::Delete));
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (before, after) = (at("2027-01-30T23:59:59Z"), at("2027-01-31T00:00:00Z"));
        let near: IpAddr = "::ffff:10.1.2.3".parse().unwrap();
        assert!(grant.counts(near, before) && !grant.counts(near, after));
        assert!(grant.counts("::1".parse().unwrap(), before));
        assert!(!grant.counts("11.0.0.1".parse().unwrap(), before));
    }

    #[test]
    fn what_is_not_understood_is_refused_whole() {
        for (options, part) in [
            ("readonly", "is no option"),
            ("no-pty,", "is no option"),
            ("command=\"x\"", "there are export, rights"),
            ("rights=read", "is no option"),
            ("rights=\"read\",", "is no option"),
            ("rights=\"read\"export=\"a\"", "is no option"),
            ("rights=\"read\",rights=\"list\"", "said twice"),
            ("rights=\"write\"", "is no right"),
            ("export=\"\"", "names nothing"),
            ("from=\"10.0.0.1/8\"", "bits behind its prefix"),
            ("from=\"localhost\"", "is no network"),
            ("expires=\"tomorrow\"", "is no time"),
            ("expires=\"2027-02-30\"", "is no time"),
            ("from=\"10.0.0.0/8", "a quote is not closed"),
        ] {
            let error = grant(options).unwrap_err();
            assert!(error.contains(part), "{options}: {error}");
        }
        for line in [
            format!("{KEY} rights=\"read\""),
            format!("from=\"::1\" {KEY} a export=\"b\""),
        ] {
            assert!(
                parse(&line).unwrap_err().contains("before the key"),
                "{line}"
            );
        }
        for line in ["ssh-ed25519 AAAA", "SHA256:short", "rights=\"read\""] {
            assert!(parse(line).unwrap_err().contains("no key"), "{line}");
        }
    }
}
