//! `[rdma]`: how RDMA is used. Each value is checked where it stands, so that a problem has its line.

use rdcp::{IpNetwork, RdmaConnect, RdmaMemory, RdmaOptions};
use serde::Deserialize;
use toml::Spanned;

use super::problem::{Places, Problems};
use crate::settings::Said;

/// The section as serde sees it.
#[derive(Default, Deserialize)]
pub(super) struct RawRdma {
    enabled: Option<Spanned<bool>>,
    devices: Option<Spanned<Vec<String>>>,
    gid_index: Option<Spanned<u8>>,
    traffic_class: Option<Spanned<u8>>,
    service_level: Option<Spanned<u8>>,
    qps_per_rail: Option<Spanned<u8>>,
    retry_cnt: Option<Spanned<u8>>,
    timeout: Option<Spanned<u8>>,
    rnr_retry: Option<Spanned<u8>>,
    min_rnr_timer: Option<Spanned<u8>>,
    memory: Option<Spanned<String>>,
    peer_networks: Option<Spanned<Vec<Spanned<String>>>>,
    connect: Option<Spanned<String>>,
    cm_port: Option<Spanned<u16>>,
}

/// What the section says, each value with its place; what it does not say is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigRdma {
    pub(crate) enabled: Option<Said<bool>>,
    pub(crate) devices: Option<Said<Vec<String>>>,
    pub(crate) gid_index: Option<Said<u8>>,
    /// Numbers by key.
    pub(crate) numbers: Vec<(&'static str, Said<u8>)>,
    pub(crate) memory: Option<Said<RdmaMemory>>,
    pub(crate) peer_networks: Option<Said<Vec<IpNetwork>>>,
    pub(crate) connect: Option<Said<RdmaConnect>>,
    pub(crate) cm_port: Option<Said<u16>>,
}

/// Keys of numbers, with what may be written.
pub(super) const RDMA_NUMBERS: [(&str, u8, u8); 7] = [
    ("traffic_class", 0, 255),
    ("service_level", 0, 15),
    ("qps_per_rail", 1, 8),
    ("retry_cnt", 0, 7),
    ("timeout", 1, 31),
    ("rnr_retry", 0, 7),
    ("min_rnr_timer", 0, 31),
];

/// Values of `memory`.
const MEMORY: [(&str, RdmaMemory); 4] = [
    ("auto", RdmaMemory::Auto),
    ("odp", RdmaMemory::Odp),
    ("mmap", RdmaMemory::Mmap),
    ("pool", RdmaMemory::Pool),
];
const MEMORY_NAMES: &str = "\"auto\", \"odp\", \"mmap\" or \"pool\"";

/// Values of `connect`.
const CONNECT: [(&str, RdmaConnect); 2] =
    [("direct", RdmaConnect::Direct), ("cm", RdmaConnect::Cm)];
const CONNECT_NAMES: &str = "\"direct\" or \"cm\"";

impl ConfigRdma {
    pub(super) fn check(raw: RawRdma, places: &Places<'_>, problems: &mut Problems) -> Self {
        let values = [
            raw.traffic_class,
            raw.service_level,
            raw.qps_per_rail,
            raw.retry_cnt,
            raw.timeout,
            raw.rnr_retry,
            raw.min_rnr_timer,
        ];
        let mut numbers = Vec::new();
        // That each is one that may be written was looked at with the keys.
        for ((key, ..), value) in RDMA_NUMBERS.into_iter().zip(values) {
            numbers.extend(value.map(|value| (key, said(places, value))));
        }
        let peer_networks = raw.peer_networks.map(|list| {
            let source = places.at(list.span().start);
            let mut value = Vec::new();
            for text in list.into_inner() {
                match text.get_ref().parse() {
                    Ok(network) => value.push(network),
                    Err(what) => problems.add(&places.at(text.span().start), what),
                }
            }
            Said { value, source }
        });
        let mut named = Named { places, problems };
        let memory = named.value("memory", raw.memory, &MEMORY, MEMORY_NAMES);
        let connect = named.value("connect", raw.connect, &CONNECT, CONNECT_NAMES);
        Self {
            enabled: raw.enabled.map(|value| said(places, value)),
            devices: raw.devices.map(|value| said(places, value)),
            gid_index: raw.gid_index.map(|value| said(places, value)),
            numbers,
            memory,
            peer_networks,
            connect,
            cm_port: raw.cm_port.map(|value| said(places, value)),
        }
    }

    /// As the library takes it.
    pub(crate) fn options(&self) -> RdmaOptions {
        let mut options = RdmaOptions::default();
        if let Some(enabled) = &self.enabled {
            options.enabled = enabled.value;
        }
        if let Some(devices) = &self.devices {
            options.devices.clone_from(&devices.value);
        }
        options.gid_index = self.gid_index.as_ref().map(|index| index.value);
        for (key, said) in &self.numbers {
            let field = match *key {
                "traffic_class" => &mut options.traffic_class,
                "service_level" => &mut options.service_level,
                "qps_per_rail" => &mut options.queue_pairs,
                "retry_cnt" => &mut options.retry_count,
                "timeout" => &mut options.timeout,
                "rnr_retry" => &mut options.rnr_retry,
                _ => &mut options.min_rnr_timer,
            };
            *field = said.value;
        }
        if let Some(memory) = &self.memory {
            options.memory = memory.value;
        }
        if let Some(networks) = &self.peer_networks {
            options.peer_networks.clone_from(&networks.value);
        }
        if let Some(connect) = &self.connect {
            options.connect = connect.value;
        }
        if let Some(port) = &self.cm_port {
            options.cm_port = port.value;
        }
        options
    }

    /// Key, value as TOML, and who said it, of every value in force.
    pub(crate) fn lines(&self) -> Vec<(String, String, String)> {
        use crate::config::problem::Source;

        let options = self.options();
        let list = |items: Vec<String>| {
            let quoted: Vec<_> = items.into_iter().map(toml::Value::from).collect();
            toml::Value::from(quoted).to_string()
        };
        let from = |source: Option<&Source>| source.unwrap_or(&Source::Default).to_string();
        let mut lines = vec![
            (
                "enabled".to_owned(),
                options.enabled.to_string(),
                from(self.enabled.as_ref().map(|said| &said.source)),
            ),
            (
                "devices".to_owned(),
                list(options.devices.clone()),
                from(self.devices.as_ref().map(|said| &said.source)),
            ),
        ];
        if let Some(index) = &self.gid_index {
            let source = from(Some(&index.source));
            lines.push(("gid_index".to_owned(), index.value.to_string(), source));
        }
        for ((key, _, _), value) in RDMA_NUMBERS.into_iter().zip([
            options.traffic_class,
            options.service_level,
            options.queue_pairs,
            options.retry_count,
            options.timeout,
            options.rnr_retry,
            options.min_rnr_timer,
        ]) {
            let said = self.numbers.iter().find(|(known, _)| *known == key);
            let source = from(said.map(|(_, said)| &said.source));
            lines.push((key.to_owned(), value.to_string(), source));
        }
        let memory = MEMORY.iter().find(|(_, value)| *value == options.memory);
        lines.push((
            "memory".to_owned(),
            format!("\"{}\"", memory.map_or("auto", |(name, _)| name)),
            from(self.memory.as_ref().map(|said| &said.source)),
        ));
        let networks = options.peer_networks.iter().map(ToString::to_string);
        lines.push((
            "peer_networks".to_owned(),
            list(networks.collect()),
            from(self.peer_networks.as_ref().map(|said| &said.source)),
        ));
        let connect = CONNECT.iter().find(|(_, value)| *value == options.connect);
        lines.push((
            "connect".to_owned(),
            format!("\"{}\"", connect.map_or("direct", |(name, _)| name)),
            from(self.connect.as_ref().map(|said| &said.source)),
        ));
        lines.push((
            "cm_port".to_owned(),
            options.cm_port.to_string(),
            from(self.cm_port.as_ref().map(|said| &said.source)),
        ));
        lines
    }
}

/// Values that are written as words.
struct Named<'a, 'b> {
    places: &'a Places<'b>,
    problems: &'a mut Problems,
}

impl Named<'_, '_> {
    /// The value with this name. One that has none is a problem, which tells the `names`.
    fn value<T: Copy>(
        &mut self,
        key: &str,
        text: Option<Spanned<String>>,
        known: &[(&str, T)],
        names: &str,
    ) -> Option<Said<T>> {
        let text = text?;
        let source = self.places.at(text.span().start);
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == text.get_ref()) {
            let value = *value;
            return Some(Said { value, source });
        }
        let text = text.get_ref().escape_debug();
        let what = format!("`rdma.{key}` is \"{text}\": write {names}");
        self.problems.add(&source, what);
        None
    }
}

fn said<T>(places: &Places<'_>, value: Spanned<T>) -> Said<T> {
    let source = places.at(value.span().start);
    Said {
        value: value.into_inner(),
        source,
    }
}
