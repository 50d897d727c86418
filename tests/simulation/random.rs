//! The only source of chance in a simulated run: SplitMix64 from one seed.

/// A small generator; the same seed gives the same run on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Takes one item out, anywhere.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> T {
        let index = self.index(from.len());
        from.swap_remove(index)
    }
}

/// Mixes a number well.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The commit that is tested, as a seed: each gets one that no other had. Nothing without git.
pub fn of_commit() -> Option<u64> {
    let mut git = std::process::Command::new("git");
    git.args(["rev-parse", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let answer = git.output().ok().filter(|answer| answer.status.success())?;
    let text = String::from_utf8(answer.stdout).ok()?;
    u64::from_str_radix(text.get(..16)?, 16).ok()
}
