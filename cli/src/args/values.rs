//! Values of options: from words to the library's types.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::ValueEnum;
use rdcp::options::{HashKind, Overwrite, RdmaConnect, RdmaMemory, TransportChoice};
use rdcp::units::ChunkSize;

/// Longest measurement of one transport.
const BENCH_TIME_MAX: Duration = Duration::from_secs(60);

/// `--overwrite`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverwriteArg {
    /// If size or time of modification differ
    #[default]
    IfDifferent,
    /// If it is older than its source
    Older,
    /// Not at all; it counts as present
    Never,
    /// Not at all; it counts as failed
    Error,
}

impl From<OverwriteArg> for Overwrite {
    fn from(arg: OverwriteArg) -> Self {
        match arg {
            OverwriteArg::IfDifferent => Self::IfDifferent,
            OverwriteArg::Older => Self::Older,
            OverwriteArg::Never => Self::Never,
            OverwriteArg::Error => Self::Error,
        }
    }
}

/// `--hash` of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HashArg {
    /// What b3sum prints; the fastest
    #[default]
    Blake3,
    /// What sha256sum prints
    Sha256,
    /// Nothing is verified
    None,
}

impl From<HashArg> for HashKind {
    fn from(arg: HashArg) -> Self {
        match arg {
            HashArg::Blake3 => Self::Blake3,
            HashArg::Sha256 => Self::Sha256,
            HashArg::None => Self::None,
        }
    }
}

/// `--hash` where there must be one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SumHashArg {
    /// What b3sum prints; the fastest
    #[default]
    Blake3,
    /// What sha256sum prints
    Sha256,
}

impl From<SumHashArg> for HashKind {
    fn from(arg: SumHashArg) -> Self {
        match arg {
            SumHashArg::Blake3 => Self::Blake3,
            SumHashArg::Sha256 => Self::Sha256,
        }
    }
}

/// `--rdma-memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RdmaMemoryArg {
    /// The best that works for each file system
    #[default]
    Auto,
    /// Mapped, and faulted in by the adapter
    Odp,
    /// Mapped and pinned
    Mmap,
    /// Copied
    Pool,
}

impl From<RdmaMemoryArg> for RdmaMemory {
    fn from(arg: RdmaMemoryArg) -> Self {
        match arg {
            RdmaMemoryArg::Auto => Self::Auto,
            RdmaMemoryArg::Odp => Self::Odp,
            RdmaMemoryArg::Mmap => Self::Mmap,
            RdmaMemoryArg::Pool => Self::Pool,
        }
    }
}

/// `--rdma-connect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RdmaConnectArg {
    /// Over the control connection, unless the server wants rdma_cm
    #[default]
    Direct,
    /// By rdma_cm, for which the server has to listen (`connect = "cm"`), or not at all
    Cm,
}

impl From<RdmaConnectArg> for RdmaConnect {
    fn from(arg: RdmaConnectArg) -> Self {
        match arg {
            RdmaConnectArg::Direct => Self::Direct,
            RdmaConnectArg::Cm => Self::Cm,
        }
    }
}

/// `--transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportArg {
    /// The best that works
    #[default]
    Auto,
    /// RDMA READs
    Rdma,
    /// TCP, wherever there is a network
    Tcp,
    /// A copy within this host
    Local,
}

impl From<TransportArg> for TransportChoice {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Auto => Self::Auto,
            TransportArg::Rdma => Self::Rdma,
            TransportArg::Tcp => Self::Tcp,
            TransportArg::Local => Self::Local,
        }
    }
}

pub(super) fn chunk_size(text: &str) -> Result<ChunkSize, String> {
    let Ok(bytes) = size(text) else {
        return Err("expected a number with K or M behind it, like 256K or 4M".to_owned());
    };
    ChunkSize::from_bytes(bytes)
        .ok_or_else(|| "a chunk is 64K, 128K, 256K, 512K, 1M, 2M, 4M, 8M or 16M".to_owned())
}

/// `1048576`, `1M`, `1MiB`: units are powers of 1024, as chunks are.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        "t" | "tib" => Some(40),
        _ => None,
    };
    let number = number.parse::<u64>().ok().filter(|number| *number > 0);
    shift
        .zip(number)
        .and_then(|(shift, number)| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected a number with K, M, G or T behind it, like 512M".to_owned())
}

/// Bytes a second, as a size.
pub(super) fn rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = size(text.strip_suffix("/s").unwrap_or(text))?;
    NonZeroU64::new(bytes).ok_or_else(|| "a rate of 0 copies nothing; leave it out".to_owned())
}

pub(super) fn bench_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time <= BENCH_TIME_MAX => Ok(time),
        _ => Err("a minute is the longest: the server lends memory for it".to_owned()),
    }
}

/// `90` (seconds), `90s`, `1m30s`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration like 90s, 5m or 1h30m".to_owned();
    let parsed = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(text.parse().map_err(|_| expected())?)
    } else {
        let signed = text
            .parse::<jiff::SignedDuration>()
            .map_err(|_| expected())?;
        signed.try_into().map_err(|_| expected())?
    };
    if parsed.is_zero() {
        return Err("must be longer than nothing".to_owned());
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes() {
        for (text, bytes) in [
            ("64K", 64 << 10),
            ("1M", 1 << 20),
            ("16MiB", 16 << 20),
            ("65536", 65536),
        ] {
            assert_eq!(chunk_size(text).unwrap().bytes(), bytes, "{text}");
        }
        for text in [
            "",
            "0",
            "3M",
            "32K",
            "32M",
            "1G",
            "-1",
            "M",
            "1 M",
            "99999999999999999999",
        ] {
            assert!(chunk_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("2m", 120_000),
            ("500ms", 500),
        ] {
            assert_eq!(
                duration(text).unwrap(),
                Duration::from_millis(millis),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "0s",
            "-1s",
            "x",
            "1 fortnight",
            "99999999999999999999",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
