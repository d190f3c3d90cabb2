//! Those who write.

use std::time::Duration;

use crate::store::{PutError, Writer};

/// How long a client waits before it offers a write again that found the queue full.
const BACK_OFF: Duration = Duration::from_millis(10);

/// What became of one client's writes.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acknowledged: u64,
    /// How often the queue was full.
    pub(crate) busy: u64,
    /// Why the last write was not acknowledged.
    pub(crate) ended: Option<PutError>,
}

/// Writes one value after the other, until one is not acknowledged for another reason than that the store is busy. `heard`
/// is called with the key and what the store said.
pub(crate) async fn write(
    writer: Writer,
    client: usize,
    heard: impl Fn(&str, &Result<(), PutError>),
) -> Tally {
    let mut tally = Tally::default();
    loop {
        let key = key(writer.opened_at(), client, tally.acknowledged);
        let value = value(&key);
        let result = writer.put(key.clone(), value).await;
        heard(&key, &result);
        match result {
            Ok(()) => tally.acknowledged += 1,
            Err(error) if error.is_busy() => {
                tally.busy += 1;
                tokio::time::sleep(BACK_OFF).await;
            }
            Err(error) => {
                tally.ended = Some(error);
                return tally;
            }
        }
    }
}

/// The key of a client's write in the run of the store that began at `run`.
pub(crate) fn key(run: u64, client: usize, write: u64) -> String {
    format!("{run}/{client}/{write}")
}

/// The value that goes with a key: between 32 and 542 bytes, so that records end anywhere.
pub(crate) fn value(key: &str) -> Vec<u8> {
    let mut bytes = blake3::Hasher::new().update(key.as_bytes()).finalize_xof();
    let mut length = [0];
    bytes.fill(&mut length);
    let mut value = vec![0; 32 + 2 * usize::from(length[0])];
    bytes.fill(&mut value);
    value
}
