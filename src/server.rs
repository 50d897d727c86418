//! The server's half of the public interface: exports, listening, ending.
