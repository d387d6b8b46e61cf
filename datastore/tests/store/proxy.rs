//! A TCP proxy that can stop forwarding without closing anything: what a dead firewall state looks
//! like.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    frozen: watch::Sender<bool>,
    connections: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, heard) = watch::channel(false);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut forwards = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                forwards.spawn(forward(stream, target, heard.clone()));
            }
        });
        Self {
            address,
            frozen,
            connections,
            _task: task,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections there are stop forwarding for good, new ones until [`Proxy::thaw`].
    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub(crate) fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    /// How many connections were made so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, mut frozen: watch::Receiver<bool>) {
    if !*frozen.borrow_and_update()
        && let Ok(mut server) = TcpStream::connect(target).await
    {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
            _ = frozen.wait_for(|frozen| *frozen) => {}
        }
        // Both ends stay open and hear nothing any more.
        std::future::pending::<()>().await;
    }
    std::future::pending::<()>().await;
}
