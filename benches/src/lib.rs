//! What tollgate's benchmark programs share: the entrants of a comparison, the closed loop they all
//! run, the bars they are held to, and the facts about the machine that every report carries.
//!
//! - `versus` compares tollgate with its peers in one process;
//! - `footprint` measures what is counted rather than raced: bytes, allocations, context switches;
//! - `soak` plays the rounds of the chaos test for millions of jobs, and looks at what is left;
//! - `admission.rs` and `blocking.rs` are criterion benchmarks, one per primitive.

pub mod bars;
pub mod closed_loop;
pub mod entrants;
pub mod machine;
pub mod polling;
pub mod report;
pub mod stats;
