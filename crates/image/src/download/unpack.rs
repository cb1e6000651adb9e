//! Hashes and decompresses a file while it is being fetched, on separate threads.

use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::Path;

use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::growing_file::GrowingFileReader;
use super::{ContentInfo, DownloadError, Packing};
use crate::digest::{Digests, Hasher, to_hex};
use crate::files::AttemptExt as _;
use crate::repository::Repository;
use crate::sparse::SparseWriter;

const CHUNK: usize = 1 << 20;
/// Disk space is checked after each of these many bytes.
const SPACE_CHECK_INTERVAL: u64 = 64 << 20;
/// The memory limit of xz decoders; its strongest preset needs a quarter of it.
const MAX_DECODER_MEMORY: u64 = 256 << 20;

impl Packing {
    fn decoder(self, packed: GrowingFileReader) -> io::Result<Box<dyn Read>> {
        let packed = BufReader::with_capacity(CHUNK, packed);
        Ok(match self {
            Self::None => Box::new(packed),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    MAX_DECODER_MEMORY,
                    liblzma::stream::CONCATENATED,
                )?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
        })
    }
}

/// Hashes a compressed file; MD5 only on request, since it is slow. Blocks.
pub(super) fn hash_stream(
    mut reader: GrowingFileReader,
    with_md5: bool,
) -> io::Result<ContentInfo> {
    let mut buffer = vec![0; CHUNK];
    let mut sha256 = Sha256::new();
    let mut md5 = with_md5.then(Md5::new);
    loop {
        let got = reader.read(&mut buffer)?;
        let (bytes, _) = buffer.split_at(got);
        if bytes.is_empty() {
            break;
        }
        sha256.update(bytes);
        if let Some(md5) = &mut md5 {
            md5.update(bytes);
        }
    }
    Ok(ContentInfo {
        size: reader.at,
        digests: Digests {
            md5: md5.map(|md5| to_hex(&md5.finalize())),
            sha256: Some(to_hex(&sha256.finalize())),
        },
    })
}

/// Computes both digests of an uncompressed file. Blocks.
pub(super) fn hash_plain_stream(mut reader: GrowingFileReader) -> io::Result<ContentInfo> {
    let mut buffer = vec![0; CHUNK];
    let mut hasher = Hasher::new()?;
    loop {
        let got = reader.read(&mut buffer)?;
        let (bytes, _) = buffer.split_at(got);
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
    }
    Ok(ContentInfo {
        size: reader.at,
        digests: hasher.finish()?,
    })
}

/// Decompresses into a new sparse file. Blocks.
pub(super) fn unpack(
    packing: Packing,
    reader: GrowingFileReader,
    target: &Path,
    limit: u64,
    repository: Option<&Repository>,
) -> Result<ContentInfo, DownloadError> {
    let decode_error = |source| DownloadError::InvalidCompressedData { packing, source };
    let file = File::create(target).attempt("create", target)?;
    let mut writer = SparseWriter::new(file).attempt("write", target)?;
    let mut decoder = packing.decoder(reader).map_err(decode_error)?;
    let mut buffer = vec![0; CHUNK];
    let mut checked = 0;
    loop {
        let got = decoder.read(&mut buffer).map_err(decode_error)?;
        let (bytes, _) = buffer.split_at(got);
        if bytes.is_empty() {
            break;
        }
        if writer.written() + got as u64 > limit {
            return Err(DownloadError::UnpacksTooLarge { limit });
        }
        if writer.written() >= checked {
            if let Some(repository) = repository {
                repository.check_space(SPACE_CHECK_INTERVAL)?;
            }
            checked += SPACE_CHECK_INTERVAL;
        }
        writer.write_all(bytes).attempt("write", target)?;
    }
    let size = writer.written();
    let (_, digests) = writer.finish().attempt("write", target)?;
    Ok(ContentInfo { size, digests })
}
