//! Reading what comes: its digests, and the file that is packed in it.
//!
//! Both forms are read while the download is under way, each by a thread of its own, so that the whole takes as long
//! as its slowest part.

use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::Path;

use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::flow::Reader;
use super::{DownloadError, Form, Packing};
use crate::digest::{Digests, Hasher, to_hex};
use crate::files::Try as _;
use crate::repository::Repository;
use crate::sparse::SparseWriter;

const PIECE: usize = 1 << 20;
/// After so many bytes it is asked again whether there is room.
const STEP: u64 = 64 << 20;
/// What a decoder may need. The strongest preset of xz takes a quarter of it.
const MEMORY: u64 = 256 << 20;

impl Packing {
    fn decoder(self, packed: Reader) -> io::Result<Box<dyn Read>> {
        let packed = BufReader::with_capacity(PIECE, packed);
        Ok(match self {
            Self::None => Box::new(packed),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    MEMORY,
                    liblzma::stream::CONCATENATED,
                )?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
        })
    }
}

/// The digests of what comes; MD5 only where it is needed, since it takes longer than all the rest. Blocks.
pub(super) fn measure(mut reader: Reader, with_md5: bool) -> io::Result<Form> {
    let mut buffer = vec![0; PIECE];
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
    Ok(Form {
        size: reader.at,
        digests: Digests {
            md5: md5.map(|md5| to_hex(&md5.finalize())),
            sha256: Some(to_hex(&sha256.finalize())),
        },
    })
}

/// Both digests of what comes, of a file that is not packed. Blocks.
pub(super) fn measure_plain(mut reader: Reader) -> io::Result<Form> {
    let mut buffer = vec![0; PIECE];
    let mut hasher = Hasher::new()?;
    loop {
        let got = reader.read(&mut buffer)?;
        let (bytes, _) = buffer.split_at(got);
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
    }
    Ok(Form {
        size: reader.at,
        digests: hasher.finish()?,
    })
}

/// Unpacks what comes into a new file, with holes where it has zeros. Blocks.
pub(super) fn unpack(
    packing: Packing,
    reader: Reader,
    target: &Path,
    limit: u64,
    repository: Option<&Repository>,
) -> Result<Form, DownloadError> {
    let broken = |source| DownloadError::NotPacked { packing, source };
    let file = File::create(target).attempt("create", target)?;
    let mut writer = SparseWriter::new(file).attempt("write", target)?;
    let mut decoder = packing.decoder(reader).map_err(broken)?;
    let mut buffer = vec![0; PIECE];
    let mut asked = 0;
    loop {
        let got = decoder.read(&mut buffer).map_err(broken)?;
        let (bytes, _) = buffer.split_at(got);
        if bytes.is_empty() {
            break;
        }
        if writer.written() + got as u64 > limit {
            return Err(DownloadError::Bomb { limit });
        }
        if writer.written() >= asked {
            if let Some(repository) = repository {
                repository.check_room(STEP)?;
            }
            asked += STEP;
        }
        writer.write_all(bytes).attempt("write", target)?;
    }
    let size = writer.written();
    let (_, digests) = writer.finish().attempt("write", target)?;
    Ok(Form { size, digests })
}
