use super::*;

/// Blocks are also zero if they were used before, and while other tests use blocks.
#[test]
fn zero_means_zero() {
    for round in 0..3 {
        let mut blocks: Vec<Block> = (0..600).map(|_| Block::take(true)).collect();
        for block in &mut blocks {
            assert_eq!(block.len(), BLOCK);
            assert!(block.iter().all(|byte| *byte == 0), "round {round}");
            block.fill(7);
        }
    }
}
