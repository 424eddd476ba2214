//! Allocations that become rarer: a cache that warms up.

use crate::clock;
use crate::execute::Run;
use crate::memory::Put;
use crate::problem::Problem;
use gputrace_test_rig::protocol::RandomAllocs;

/// Sizes are multiples of this, but for the last one.
const STEP: u64 = 512;

/// Carries [`RandomAllocs`] out.
pub fn grow(run: &mut Run<'_>, random: &RandomAllocs) -> Result<(), Problem> {
    if random.min == 0 || random.max < random.min {
        return Err(Problem::Value("the sizes must be 0 < min <= max"));
    }
    if !(random.ratio.is_finite() && random.ratio > 0.0) {
        return Err(Problem::Value("the ratio of two pauses must be above 0"));
    }
    let function = run.allocating(random.via)?;
    let put = Put {
        site: random.site,
        label: &random.label,
        expect: &random.expect,
    };
    let sizes = sizes(random);
    let started = clock::now();
    for (size, due) in sizes.iter().zip(schedule(sizes.len(), random)) {
        clock::wait_until(started + due, run.session.runner());
        run.alloc_one(function, *size, &put)?;
    }
    Ok(())
}

/// Random sizes whose sum is exact.
fn sizes(random: &RandomAllocs) -> Vec<u64> {
    let mut generator = Generator::new(random.seed);
    let steps = (random.max - random.min) / STEP + 1;
    let mut left = random.total;
    let mut sizes = Vec::new();
    while left > 0 {
        let size = random.min + generator.next() % steps * STEP;
        sizes.push(size.min(left));
        left -= size.min(left);
    }
    sizes
}

/// When each of `count` allocations is due: nanoseconds after the first, which is due at once.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of minutes, to less than a microsecond"
)]
fn schedule(count: usize, random: &RandomAllocs) -> Vec<u64> {
    let pauses = count.saturating_sub(1);
    // Pauses in units of the first one; then the unit is what makes them take `over` together.
    let weights: Vec<f64> = std::iter::successors(Some(1.0), |weight| Some(weight * random.ratio))
        .take(pauses)
        .collect();
    let sum: f64 = weights.iter().sum();
    let mut due = vec![0];
    let mut before = 0.0;
    for weight in weights {
        before += weight;
        due.push((before / sum * random.over as f64) as u64);
    }
    due
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
pub struct Generator(u64);

impl Generator {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> RandomAllocs {
        RandomAllocs {
            seed: 7,
            min: 1 << 20,
            max: 64 << 20,
            total: 3_328_599_654,
            over: 300_000_000_000,
            ratio: 1.05,
            site: gputrace_test_rig::protocol::Site::default(),
            label: String::new(),
            via: gputrace_test_rig::protocol::Via::Driver,
            expect: gputrace_test_rig::protocol::Expect::default(),
        }
    }

    #[test]
    fn the_sum_of_the_sizes_is_exact() {
        let random = cache();
        let sizes = sizes(&random);
        assert_eq!(sizes.iter().sum::<u64>(), random.total);
        let (_last, others) = sizes.split_last().unwrap();
        assert!(
            others
                .iter()
                .all(|size| (random.min..=random.max).contains(size))
        );
        assert!(sizes.len() > 50);
    }

    #[test]
    fn the_pauses_grow_and_take_the_whole_time() {
        let random = cache();
        let due = schedule(100, &random);
        assert_eq!((due.len(), due[0], due[99]), (100, 0, random.over));
        let pauses: Vec<u64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(schedule(1, &random), [0]);
        assert_eq!(schedule(2, &random), [0, random.over]);
    }
}
