//! The socket between an actor and its runner.

use serde::{Serialize, de};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    lines: BufReader<UnixStream>,
}

impl Connection {
    /// Speaks over this stream.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            lines: BufReader::new(stream),
        }
    }

    /// The stream below.
    pub fn stream(&self) -> &UnixStream {
        self.lines.get_ref()
    }

    /// Sends one message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.lines.get_mut().write_all(&line)
    }

    /// Waits for the next message; None when the other end is gone.
    pub fn receive<T: de::DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => Ok(None),
            // A line without its end: the writer died while it wrote.
            Ok(_) if !line.ends_with('\n') => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }
}
