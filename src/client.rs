//! The client's half of the public interface: connect, transfer, look, read.
