//! A TCP proxy that misbehaves on request.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;

/// Forwards connections on loopback to a port on loopback.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    refuse: AtomicBool,
    ended: AtomicBool,
    accepted: AtomicUsize,
    stalled: Mutex<Stalled>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

/// What does not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stalled {
    Nothing,
    Answers,
    Everything,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    pub fn start(target_port: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], target_port)),
            refuse: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            stalled: Mutex::new(Stalled::Nothing),
            changed: Condvar::new(),
            open: Mutex::new(Vec::new()),
        });
        let acceptor = shared.clone();
        thread::spawn(move || acceptor.accept(&listener));
        Ok(Self { port, shared })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections that were let through so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Breaks all connections; new ones work.
    pub fn drop_connections(&self) {
        self.shared.drop_connections();
    }

    /// Breaks all connections and every new one at once, until told otherwise.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refuse.store(refuse, Ordering::SeqCst);
        if refuse {
            self.drop_connections();
        }
    }

    /// Nothing gets through any more, in neither direction, but connections stay open.
    pub fn stall(&self, stall: bool) {
        self.set_stalled(if stall {
            Stalled::Everything
        } else {
            Stalled::Nothing
        });
    }

    /// What the server sends does not get through any more, but it gets everything.
    pub fn stall_answers(&self, stall: bool) {
        self.set_stalled(if stall {
            Stalled::Answers
        } else {
            Stalled::Nothing
        });
    }

    fn set_stalled(&self, stalled: Stalled) {
        *lock(&self.shared.stalled) = stalled;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.stall(false);
        self.drop_connections();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            if let Ok(client) = client
                && !self.refuse.load(Ordering::SeqCst)
            {
                // A server that is down is seen by the client as a connection that breaks.
                let _ = self.forward(&client);
                // Who refuses from now on knows nothing of it.
                if self.refuse.load(Ordering::SeqCst) {
                    self.drop_connections();
                }
            }
        }
    }

    fn drop_connections(&self) {
        for stream in lock(&self.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn forward(self: &Arc<Self>, client: &TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.target)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.accepted.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).extend([client.try_clone()?, server.try_clone()?]);
        for (from, to, stalled_by) in [
            (
                client.try_clone()?,
                server.try_clone()?,
                &[Stalled::Everything][..],
            ),
            (
                server.try_clone()?,
                client.try_clone()?,
                &[Stalled::Everything, Stalled::Answers][..],
            ),
        ] {
            let shared = self.clone();
            thread::spawn(move || {
                let _ = shared.copy(&from, &to, stalled_by);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }

    fn copy(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        stalled_by: &[Stalled],
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer)?;
            let mut stalled = lock(&self.stalled);
            while stalled_by.contains(&stalled) {
                stalled = self
                    .changed
                    .wait(stalled)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            drop(stalled);
            match buffer.get(..count) {
                None | Some([]) => return Ok(()),
                Some(bytes) => to.write_all(bytes)?,
            }
        }
    }
}
