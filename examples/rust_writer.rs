// Write JSON lines into a channel from Rust, without a crate, through librelayfs:
//
//     rustc -O rust_writer.rs $(pkg-config --libs-only-L relayfs)
//     ./rust_writer MNT/app/json [COUNT [THREADS]]
//
// A record is in shared memory when write() returns, which makes no system call. A server must not wait for a reader:
// while the buffer is full, lines are dropped, which this program and the channel's lost_full count. A channel that was
// made with mode=overwrite is never full.

use std::env;
use std::ffi::{CStr, CString};
use std::io;
use std::os::raw::{c_char, c_int, c_void};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const ENOSPC: i32 = 28;

// <relayfs/relay.h>
#[link(name = "relayfs")]
extern "C" {
    fn relay_attach(path: *const c_char) -> *mut c_void;
    fn relay_write(channel: *mut c_void, data: *const c_void, length: usize) -> c_int;
    fn relay_close(channel: *mut c_void);
    fn relay_strerror(error: c_int) -> *const c_char;
}

/// A channel that is open for writing, by any number of threads.
struct Channel(*mut c_void);

// relay_write() may be called in all threads at once.
unsafe impl Send for Channel {}
unsafe impl Sync for Channel {}

impl Channel {
    /// path: of its relay files, without the number
    fn open(path: &str) -> io::Result<Channel> {
        let path = CString::new(path)?;
        let channel = unsafe { relay_attach(path.as_ptr()) };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Channel(channel))
    }

    /// Write one record; ENOSPC: the buffer is full.
    fn write(&self, record: &[u8]) -> io::Result<()> {
        match unsafe { relay_write(self.0, record.as_ptr().cast(), record.len()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        unsafe { relay_close(self.0) }
    }
}

fn fail(path: &str, error: &io::Error) -> ! {
    let text = unsafe { CStr::from_ptr(relay_strerror(error.raw_os_error().unwrap_or(0))) };
    eprintln!("rust_writer: {}: {}", path, text.to_string_lossy());
    exit(1)
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let number = |i: usize, default| arguments.get(i).map_or(Ok(default), |text| text.parse::<u64>());
    let (path, count, threads) = match (arguments.get(1), number(2, 100), number(3, 1)) {
        (Some(path), Ok(count), Ok(threads)) => (path, count, threads),
        _ => {
            eprintln!("usage: rust_writer MNT/app/json [COUNT [THREADS]]");
            exit(2)
        }
    };
    let channel = Channel::open(path).unwrap_or_else(|error| fail(path, &error));
    let dropped = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (channel, dropped) = (&channel, &dropped);
            scope.spawn(move || {
                for request in 0..count {
                    let level = if request % 10 == 7 { "ERROR" } else { "INFO" };
                    let line = format!("{{\"level\":\"{level}\",\"thread\":{thread},\"request\":{request}}}\n");
                    match channel.write(line.as_bytes()) {
                        Err(error) if error.raw_os_error() == Some(ENOSPC) => {
                            dropped.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => fail(path, &error),
                        Ok(()) => {}
                    }
                }
            });
        }
    });
    let dropped = dropped.into_inner();
    if dropped > 0 {
        eprintln!("{dropped} lines were dropped, because the buffer was full");
    }
}
