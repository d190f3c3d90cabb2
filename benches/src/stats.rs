//! Order statistics of a handful of samples.

/// The median; of an even number of samples, the mean of the middle two. NaN when there are none.
pub fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Which samples lie within `factor` of their own median, either way.
pub fn near_median(samples: &[f64], factor: f64) -> Vec<bool> {
    let centre = median(samples.iter().copied());
    samples.iter().map(|s| *s <= centre * factor && *s >= centre / factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert!(median([]).is_nan());
    }

    #[test]
    fn a_sample_off_its_median_is_found_on_either_side() {
        assert_eq!(near_median(&[1.0, 1.0, 1.0, 1.6, 0.6], 1.5), [true, true, true, false, false]);
    }
}
