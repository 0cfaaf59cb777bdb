// Write the lines of the standard input into a channel from Rust, through its relay files:
//
//     rustc -O rust_files.rs
//     ./rust_files MNT/app/lines <FILE
//
// This needs the mount alone, and no library, as in a container. Each write(2) is one record. While the buffer is full,
// the program waits for a reader.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Write};
use std::process::exit;
use std::thread::sleep;
use std::time::Duration;

const ENOSPC: i32 = 28;

extern "C" {
    fn sched_getcpu() -> i32; // of the C library, which every program has
}

/// The relay files of a channel.
struct Channel {
    files: Vec<File>,
}

impl Channel {
    /// path: of its relay files, without the number
    fn open(path: &str) -> io::Result<Channel> {
        // Without create(): if nothing is mounted there, opening must fail.
        let open = |path: &str| OpenOptions::new().write(true).open(path);
        // One for each CPU; with buffers=global there is the first alone.
        let mut files = Vec::new();
        loop {
            match open(&format!("{}{}", path, files.len())) {
                Ok(file) => files.push(file),
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        // With buffers=single it has no number.
        if files.is_empty() {
            files.push(open(path)?);
        }
        Ok(Channel { files })
    }

    /// Write one record into the buffer of this CPU.
    fn write(&self, record: &[u8]) -> io::Result<()> {
        let cpu = unsafe { sched_getcpu() }.max(0) as usize;
        let mut file = &self.files[cpu % self.files.len()];
        loop {
            match file.write(record) {
                Err(error) if error.raw_os_error() == Some(ENOSPC) => sleep(Duration::from_millis(1)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }
}

fn copy(path: &str) -> io::Result<()> {
    let channel = Channel::open(path)?;
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        channel.write(&line)?;
        line.clear();
    }
    Ok(())
}

fn main() {
    let path = env::args().nth(1).unwrap_or_else(|| {
        eprintln!("usage: rust_files MNT/app/lines <FILE");
        exit(2)
    });
    if let Err(error) = copy(&path) {
        eprintln!("rust_files: {}: {}", path, error);
        exit(1)
    }
}
