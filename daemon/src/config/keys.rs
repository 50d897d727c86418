//! Which keys a configuration file may have. A key that is not known is refused with the nearest
//! one that is: a misspelt limit that is quietly ignored is a limit that does not exist.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Places, Problems};

/// Keys at the top of the file.
pub(crate) const TOP: &[&str] = &[
    "auth",
    "drain_seconds",
    "exports",
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
    "devices",
    "enabled",
    "gid_index",
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
pub(crate) const EXPORT: &[&str] = &["path", "writable"];

/// How alike two keys must be for one to be offered for the other (1 is equal).
const LIKENESS_MIN: f64 = 0.7;

/// Notes every key of `table` that nobody will read.
pub(crate) fn refuse_unknown(table: &DeTable<'_>, places: &Places<'_>, problems: &mut Problems) {
    check(table, "", TOP, places, problems);
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "limits" => check_inner(value, "limits.", LIMITS, places, problems),
            "rdma" => check_inner(value, "rdma.", RDMA, places, problems),
            "log" => check_inner(value, "log.", LOG, places, problems),
            "exports" => {
                for (name, export) in value.get_ref().as_table().into_iter().flatten() {
                    let prefix = format!("exports.{}.", name.get_ref());
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
    // A value that is no table is told as a wrong type when it is read.
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

fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
