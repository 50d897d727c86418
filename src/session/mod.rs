//! One peer: control connection, engines, lanes and storage joined. Async lives here and outward.

pub mod known_hosts;
