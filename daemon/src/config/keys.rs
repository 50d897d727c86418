//! Which keys a configuration file may have, and which values. A key that is not known is refused with the nearest
//! one that is: a misspelt limit that is quietly ignored is a limit that does not exist.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Places, Problems};
use super::rdma::RDMA_NUMBERS;

/// What a value must be, for a person.
enum Wanted {
    Text,
    Texts,
    Number { min: u64, max: u64 },
    YesNo,
    Table,
}

impl Wanted {
    fn of(table: &str, key: &str) -> Option<Self> {
        if table == "rdma."
            && let Some((_, min, max)) = RDMA_NUMBERS.iter().find(|(known, ..)| *known == key)
        {
            return Some(Self::Number {
                min: (*min).into(),
                max: (*max).into(),
            });
        }
        Some(match (table, key) {
            ("", "listen") | ("exports.NAME.", "rights" | "clients" | "from") | ("groups.", _) => {
                Self::Texts
            }
            ("", "audit" | "auth" | "authorized_keys" | "state_dir")
            | ("log.", _)
            | ("exports.NAME.", "integrity" | "path") => Self::Text,
            ("", "drain_seconds") => Self::Number {
                min: 0,
                max: u32::MAX.into(),
            },
            ("limits.", "sessions_max") => Self::Number {
                min: 0,
                max: u32::MAX.into(),
            },
            ("rdma.", "gid_index") => Self::Number { min: 0, max: 255 },
            ("rdma.", "cm_port") => Self::Number {
                min: 0,
                max: u16::MAX.into(),
            },
            ("exports.NAME.", "writable") => Self::YesNo,
            ("", "limits" | "log" | "groups" | "exports") | ("exports.", _) => Self::Table,
            _ => return None,
        })
    }

    /// Whether a value is that; if not, what to write.
    fn check(&self, value: &DeValue<'_>) -> Result<(), String> {
        let (fits, write) = match (self, value) {
            (Self::Text, value) => (value.is_str(), "a text in quotes".to_owned()),
            (Self::Texts, DeValue::Array(list)) => (
                list.iter().all(|text| text.get_ref().is_str()),
                "a list of texts in quotes".to_owned(),
            ),
            (Self::Texts, _) => (false, "a list of texts in quotes: [\"...\"]".to_owned()),
            (Self::Number { min, max }, DeValue::Integer(number)) => {
                let digits = number.as_str().replace('_', "");
                let parsed = u64::from_str_radix(&digits, number.radix()).ok();
                let fits = parsed.is_some_and(|number| (*min..=*max).contains(&number));
                (fits, format!("a number from {min} to {max}"))
            }
            (Self::Number { min, max }, _) => (false, format!("a number from {min} to {max}")),
            (Self::YesNo, value) => (value.is_bool(), "true or false".to_owned()),
            (Self::Table, value) => (value.is_table(), "a table of keys".to_owned()),
        };
        if fits { Ok(()) } else { Err(write) }
    }
}

/// Keys at the top of the file.
pub(crate) const TOP: &[&str] = &[
    "audit",
    "auth",
    "authorized_keys",
    "drain_seconds",
    "exports",
    "groups",
    "limits",
    "listen",
    "log",
    "rdma",
    "state_dir",
];
/// Keys of `[limits]`.
pub(crate) const LIMITS: &[&str] = &["sessions_max"];
/// Keys of `[log]`.
pub(crate) const LOG: &[&str] = &["format", "level"];
/// Keys of `[rdma]`.
pub(crate) const RDMA: &[&str] = &[
    "cm_port",
    "connect",
    "devices",
    "enabled",
    "gid_index",
    "memory",
    "min_rnr_timer",
    "peer_networks",
    "qps_per_rail",
    "retry_cnt",
    "rnr_retry",
    "service_level",
    "timeout",
    "traffic_class",
];
/// Keys of `[exports.NAME]`.
pub(crate) const EXPORT: &[&str] = &["clients", "from", "integrity", "path", "rights", "writable"];

/// How alike two keys must be for one to be offered for the other (1 is equal).
const LIKENESS_MIN: f64 = 0.7;

/// Notes every key of `table` that nobody will read, and every value of a wrong type.
pub(crate) fn refuse_wrong(table: &DeTable<'_>, places: &Places<'_>, problems: &mut Problems) {
    check(table, "", TOP, places, problems);
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "limits" => check_inner(value, "limits.", LIMITS, places, problems),
            "rdma" => check_inner(value, "rdma.", RDMA, places, problems),
            "log" => check_inner(value, "log.", LOG, places, problems),
            // The names are the operator's.
            "groups" => {
                if let Some(groups) = value.get_ref().as_table() {
                    let names: Vec<&str> = groups.keys().map(|name| &**name.get_ref()).collect();
                    check(groups, "groups.", &names, places, problems);
                }
            }
            "exports" => {
                for (name, export) in value.get_ref().as_table().into_iter().flatten() {
                    let prefix = format!("exports.{}.", name.get_ref());
                    if !export.get_ref().is_table() {
                        let what = format!(
                            "`exports.{0}` must be a table: write [exports.{0}] and below it path = \"/...\"",
                            name.get_ref().escape_debug()
                        );
                        problems.add(&places.at(export.span().start), what);
                    } else if !export
                        .get_ref()
                        .as_table()
                        .is_some_and(|table| table.contains_key("path"))
                    {
                        let what = format!(
                            "`{}path` is missing: write path = \"/...\"",
                            prefix.escape_debug()
                        );
                        problems.add(&places.at(name.span().start), what);
                    }
                    check_inner(export, &prefix, EXPORT, places, problems);
                }
            }
            _ => {}
        }
    }
}

fn check_inner(
    value: &Spanned<DeValue<'_>>,
    prefix: &str,
    known: &[&str],
    places: &Places<'_>,
    problems: &mut Problems,
) {
    if let Some(table) = value.get_ref().as_table() {
        check(table, prefix, known, places, problems);
    }
}

fn check(
    table: &DeTable<'_>,
    prefix: &str,
    known: &[&str],
    places: &Places<'_>,
    problems: &mut Problems,
) {
    for key in table.keys() {
        let name = key.get_ref().as_ref();
        if known.contains(&name) {
            check_value(table, prefix, name, places, problems);
            continue;
        }
        let advice = match nearest(name, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        problems.add(
            &places.at(key.span().start),
            format!(
                "unknown key `{}{}`; {advice}",
                prefix.escape_debug(),
                name.escape_debug()
            ),
        );
    }
}

/// Notes a value of a wrong type. `prefix` has the names of exports in it.
fn check_value(
    table: &DeTable<'_>,
    prefix: &str,
    name: &str,
    places: &Places<'_>,
    problems: &mut Problems,
) {
    let of = if prefix.starts_with("exports.") {
        "exports.NAME."
    } else {
        prefix
    };
    let (Some(wanted), Some(value)) = (Wanted::of(of, name), table.get(name)) else {
        return;
    };
    if let Err(write) = wanted.check(value.get_ref()) {
        let what = format!("`{}{name}` must be {write}", prefix.escape_debug());
        problems.add(&places.at(value.span().start), what);
    }
}

fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
