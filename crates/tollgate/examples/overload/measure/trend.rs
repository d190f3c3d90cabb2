//! A straight line through points, without keeping the points.

/// Least squares over the points added so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trend {
    points: f64,
    mean_x: f64,
    mean_y: f64,
    /// Sum of `(x - mean_x)²`.
    spread: f64,
    /// Sum of `(x - mean_x) · (y - mean_y)`.
    covariance: f64,
}

impl Trend {
    /// Keeps means and deviations rather than plain sums, which would cancel badly.
    pub(super) fn add(&mut self, x: f64, y: f64) {
        self.points += 1.0;
        let from_old_mean = x - self.mean_x;
        self.mean_x += from_old_mean / self.points;
        self.mean_y += (y - self.mean_y) / self.points;
        self.spread += from_old_mean * (x - self.mean_x);
        self.covariance += from_old_mean * (y - self.mean_y);
    }

    /// How much `y` grows per unit of `x`; `None` while no line is determined.
    pub(super) fn slope(&self) -> Option<f64> {
        (self.spread > 0.0).then(|| self.covariance / self.spread)
    }
}
