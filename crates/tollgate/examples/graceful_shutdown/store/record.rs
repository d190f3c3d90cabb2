//! How records lie in the log.
//!
//! ```text
//! checksum: 16 bytes | length of the body: 4 | body: kind: 1, then for a put: length of the key: 2 | key | value
//! ```
//!
//! The checksum is over everything behind it, so a record that was cut off, or of which only some sectors reached the
//! disk, is not taken for a whole one. No body is empty: zeros are no record.

const CHECKSUM: usize = 16;
const HEAD: usize = CHECKSUM + 4;
const PUT: u8 = 1;
const CLEAN: u8 = 2;

/// The longest body. A length beyond it is garbage, and not believed.
const MOST: usize = 1 << 20;

/// The longest record as it lies in the log.
pub(crate) const LONGEST: usize = HEAD + MOST;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A client's write.
    Put { key: String, value: Vec<u8> },
    /// The store was shut down, and everything before this had been synced.
    Clean,
}

/// A record that does not fit its length fields.
#[derive(Debug, thiserror::Error)]
#[error("a key of {key} and a value of {value} bytes make too long a record")]
pub(crate) struct TooLong {
    key: usize,
    value: usize,
}

impl Record {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let mut body = Vec::new();
        match self {
            Record::Clean => body.push(CLEAN),
            Record::Put { key, value } => {
                let too_long = || TooLong { key: key.len(), value: value.len() };
                body.push(PUT);
                body.extend(u16::try_from(key.len()).map_err(|_| too_long())?.to_le_bytes());
                body.extend(key.as_bytes());
                body.extend(value);
                if body.len() > MOST {
                    return Err(too_long());
                }
            }
        }
        let mut framed = vec![0; CHECKSUM];
        // `MOST` fits.
        framed.extend((body.len() as u32).to_le_bytes());
        framed.extend(body);
        let checksum = checksum(&framed[CHECKSUM..]);
        framed[..CHECKSUM].copy_from_slice(&checksum);
        Ok(framed)
    }

    /// The record at the start of `bytes` and its length there, if it is whole.
    fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
        let length = u32::from_le_bytes(bytes.get(CHECKSUM..HEAD)?.try_into().ok()?) as usize;
        if length > MOST {
            return None;
        }
        let framed = bytes.get(..HEAD + length)?;
        if checksum(&framed[CHECKSUM..]) != framed[..CHECKSUM] {
            return None;
        }
        let (kind, rest) = framed[HEAD..].split_first()?;
        let record = match *kind {
            CLEAN if rest.is_empty() => Record::Clean,
            PUT => {
                let (length, rest) = rest.split_first_chunk()?;
                let (key, value) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
                let key = String::from_utf8(key.to_vec()).ok()?;
                Record::Put { key, value: value.to_vec() }
            }
            _ => return None,
        };
        Some((record, framed.len()))
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut checksum = [0; CHECKSUM];
    checksum.copy_from_slice(&blake3::hash(bytes).as_bytes()[..CHECKSUM]);
    checksum
}

/// The records at the start of some bytes, up to the first that is not whole.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    whole: usize,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Records { bytes, whole: 0 }
    }

    /// How many bytes the records make that have come so far.
    pub(crate) fn whole(&self) -> usize {
        self.whole
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let (record, length) = Record::decode(&self.bytes[self.whole..])?;
        self.whole += length;
        Some(record)
    }
}
