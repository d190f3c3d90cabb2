//! How long jobs waited and ran.

use std::fmt;
use std::time::Duration;

type Buckets = hdrhistogram::Histogram<u64>;

/// A distribution of times, in buckets of 1 % width at most.
///
/// An empty one takes no memory: a pool may have a thousand lanes.
#[derive(Clone, Default)]
pub struct Histogram(Option<Box<Buckets>>);

impl Histogram {
    #[inline]
    pub(crate) fn record(&mut self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        // two digits are always valid
        let new = || Box::new(Buckets::new(2).expect("two significant digits are in range"));
        // it grows to hold the value; what it can't hold is 292 years
        let _ = self.0.get_or_insert_with(new).record(nanos.min(i64::MAX as u64));
    }

    /// How many times were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |buckets| buckets.len())
    }

    /// The time that the share `quantile`, from 0 to 1, of all did not exceed; zero when there are none.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let Some(buckets) = &self.0 else { return Duration::ZERO };
        Duration::from_nanos(buckets.value_at_quantile(quantile.clamp(0.0, 1.0)))
    }

    /// The longest time, to the width of a bucket.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.as_ref().map_or(0, |buckets| buckets.max()))
    }

    /// The mean time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.as_ref().map_or(0, |buckets| buckets.mean() as u64))
    }

    /// The buckets that hold something: the longest time in each, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.0
            .iter()
            .flat_map(|buckets| buckets.iter_recorded())
            .map(|step| (Duration::from_nanos(step.value_iterated_to()), step.count_at_value()))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("mean", &self.mean())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Histogram", 7)?;
        out.serialize_field("count", &self.count())?;
        out.serialize_field("mean", &self.mean())?;
        out.serialize_field("p50", &self.quantile(0.5))?;
        out.serialize_field("p90", &self.quantile(0.9))?;
        out.serialize_field("p99", &self.quantile(0.99))?;
        out.serialize_field("p999", &self.quantile(0.999))?;
        out.serialize_field("max", &self.max())?;
        out.end()
    }
}
