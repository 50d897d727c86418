//! Random reads of a file on a server.
