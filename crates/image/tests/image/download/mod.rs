//! Downloads from correct and faulty servers.

mod faults;
mod good;
mod killed;
mod rules;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_fetch::{Backoff, HttpClient};
use nodeyard_image::{
    Digests, Download, DownloadError, Downloaded, Hasher, Packing, ProgressFn, Repository,
    Throttle, download,
};
use tempfile::TempDir;

/// Directories for downloads, and a client that may connect to this host.
pub(crate) struct DownloadFixture {
    pub(crate) dir: TempDir,
    pub(crate) client: HttpClient,
}

impl DownloadFixture {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            client: client(),
        }
    }

    pub(crate) fn place(&self) -> PathBuf {
        self.dir.path().join("downloads/image/uuid.raw")
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.dir.path().join("target.raw")
    }

    pub(crate) fn part(&self) -> PathBuf {
        self.dir.path().join("downloads/image/uuid.raw.part")
    }

    pub(crate) async fn fetch(&self, order: &Download) -> Result<Downloaded, DownloadError> {
        self.fetch_within(order, None).await
    }

    /// Downloads within the limits of a repository.
    pub(crate) async fn fetch_within(
        &self,
        order: &Download,
        repository: Option<&Repository>,
    ) -> Result<Downloaded, DownloadError> {
        let meter: ProgressFn = Arc::new(|_, _| {});
        let (place, target) = (self.place(), self.target());
        download(&self.client, order, &place, &target, repository, &meter).await
    }

    pub(crate) fn fetched(&self) -> Vec<u8> {
        std::fs::read(self.target()).unwrap()
    }
}

pub(crate) fn client() -> HttpClient {
    client_with_timeout(Duration::from_secs(300))
}

/// Returns a client with this read timeout.
pub(crate) fn client_with_timeout(read_timeout: Duration) -> HttpClient {
    HttpClient::new(nodeyard_fetch::Options {
        allow_insecure: true,
        allow_private: true,
        read_timeout,
        ..Default::default()
    })
    .unwrap()
}

/// Returns a download with small ranges and short delays.
pub(crate) fn order(url: &str) -> Download {
    let mut order = Download::new(url.parse().unwrap());
    order.backoff = Backoff {
        initial_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(5),
    };
    order.piece = 64 << 10;
    order.save_every = Duration::from_millis(20);
    order
}

/// Returns incompressible bytes and zeros.
pub(crate) fn content(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut content: Vec<u8> = (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    content[size / 4..size / 2].fill(0);
    content
}

pub(crate) fn digests(content: &[u8]) -> Digests {
    let mut hasher = Hasher::new().unwrap();
    hasher.update(content);
    hasher.finish().unwrap()
}

pub(crate) fn pack(packing: Packing, content: &[u8]) -> Vec<u8> {
    match packing {
        Packing::None => content.to_vec(),
        Packing::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(content).unwrap();
            writer.finish().unwrap()
        }
        Packing::Xz => {
            let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 0);
            writer.write_all(content).unwrap();
            writer.finish().unwrap()
        }
        Packing::Zstd => zstd::encode_all(content, 1).unwrap(),
        Packing::Bzip2 => {
            let mut writer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            writer.write_all(content).unwrap();
            writer.finish().unwrap()
        }
    }
}
