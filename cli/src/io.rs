//! Where output goes: two streams that never panic and whose loss never ends a copy.
//!
//! A reader that went away (EPIPE) silences its stream, and whoever ends the run decides what that
//! means; any other failure (a full disk behind `> file`, no stream at all) is remembered, because
//! output that was asked for and is missing is a failure.

use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::os::fd::AsFd;

/// The two output streams of a run, and whether a person is watching them.
pub struct Io {
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
    /// The process was started without a standard output, so that what is written to it is lost.
    pub stdout_was_missing: bool,
}

impl Io {
    /// Those of this process.
    pub fn process() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let stdout_was_missing = rdcp::sys::startup::stdout_was_missing();
        // Rust's own standard output takes "bad file descriptor" for success, so writes go past it.
        let stdout = match io::stdout().as_fd().try_clone_to_owned() {
            _ if stdout_was_missing => Stream::new(Missing, false),
            Ok(fd) => Stream::new(LineWriter::new(File::from(fd)), is_terminal),
            Err(_) => Stream::new(io::stdout(), is_terminal),
        };
        Self {
            stdout,
            stderr: Stream::new(io::stderr(), io::stderr().is_terminal()),
            stdout_was_missing,
        }
    }
}

/// In place of a stream that the process was started without.
struct Missing;

impl Write for Missing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("it is closed"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One output stream.
pub struct Stream {
    writer: Box<dyn Write + Send>,
    is_terminal: bool,
    state: State,
}

enum State {
    Open,
    /// Nobody reads any more.
    Broken,
    Failed(io::Error),
}

impl Stream {
    /// A stream on top of a writer.
    pub fn new(writer: impl Write + Send + 'static, is_terminal: bool) -> Self {
        Self {
            writer: Box::new(writer),
            is_terminal,
            state: State::Open,
        }
    }

    /// Whether a person is watching.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether writing still has a reader and works.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Writes all of it, or notes why not.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.is_open() {
            let result = self.writer.write_all(bytes);
            self.note(result);
        }
    }

    /// Writes what a file holds, and tells how many bytes of it were taken. Here a reader that went
    /// away is a failure like others: [`Self::is_open`] tells whether all was taken.
    pub fn write_content(&mut self, bytes: &[u8]) -> u64 {
        let mut written = 0;
        while self.is_open() && written < bytes.len() {
            match self.writer.write(&bytes[written..]) {
                Ok(0) => self.note(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.note(Err(error)),
            }
        }
        written as u64
    }

    /// Writes a line and hands it on to whoever reads.
    pub fn line(&mut self, text: &str) {
        let mut line = String::with_capacity(text.len() + 1);
        line.push_str(text);
        line.push('\n');
        // One write, so that lines of several programs don't mix.
        self.write(line.as_bytes());
        self.flush();
    }

    /// Hands on what is buffered.
    pub fn flush(&mut self) {
        if self.is_open() {
            let result = self.writer.flush();
            self.note(result);
        }
    }

    /// Why output is missing, unless its reader went away by itself.
    pub fn failure(&self) -> Option<&io::Error> {
        match &self.state {
            State::Failed(error) => Some(error),
            State::Open | State::Broken => None,
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.state = State::Broken,
            Err(error) => self.state = State::Failed(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A writer whose content a test can see.
    #[derive(Clone, Default)]
    pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Streams that a test can read.
    pub(crate) fn captured(terminal: bool) -> (Io, Shared, Shared) {
        let (out, err) = (Shared::default(), Shared::default());
        let io = Io {
            stdout: Stream::new(out.clone(), terminal),
            stderr: Stream::new(err.clone(), terminal),
            stdout_was_missing: false,
        };
        (io, out, err)
    }

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_leaves_is_no_failure_and_a_full_disk_is_one() {
        let mut stream = Stream::new(Failing(io::ErrorKind::BrokenPipe), false);
        stream.line("x");
        stream.line("y");
        assert!(!stream.is_open() && stream.failure().is_none());
        let mut stream = Stream::new(Failing(io::ErrorKind::StorageFull), false);
        stream.line("x");
        assert!(stream.failure().is_some());
    }
}
