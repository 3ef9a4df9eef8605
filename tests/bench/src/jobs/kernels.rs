//! The kernels of `tests/kernels/papers`: their sizes, and the gains that their papers report.

use serde::Serialize;

/// The gain that a paper reports for a kernel, and the comparison that it comes from. None of them
/// is the comparison that is measured here, so the paper's comparison must be stated next to the
/// number.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Paper {
    /// Lowest and highest factor; `None` if the paper gives none.
    pub factor: Option<(f64, f64)>,
    pub comparison: &'static str,
}

impl Paper {
    pub fn text(&self) -> String {
        match self.factor {
            None => "none given".to_owned(),
            Some((from, to)) if from == to => format!("{from}"),
            Some((from, to)) => format!("{from} to {to}"),
        }
    }
}

pub struct Kernel {
    /// Name in the tables.
    pub name: &'static str,
    /// Name of the program in `tests/kernels`.
    pub program: &'static str,
    /// Hints for the MPI library; an empty list leaves everything to it.
    hints: &'static [&'static str],
    pub paper: Paper,
    /// Returns its arguments for about that many bytes from each rank.
    arguments: fn(u64) -> Vec<(&'static str, u64)>,
}

impl Kernel {
    pub fn named(name: &str) -> Option<&'static Kernel> {
        ALL.iter().find(|kernel| kernel.name == name)
    }

    /// Returns the arguments for about `size` bytes from each rank. A kernel never writes nothing,
    /// however small `size` is.
    pub fn arguments(&self, size: u64) -> Vec<String> {
        let sizes = (self.arguments)(size).into_iter();
        let sizes = sizes.flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
        let hints = self.hints.iter();
        let hints = hints.flat_map(|hint| ["--hint".to_owned(), (*hint).to_owned()]);
        sizes.chain(hints).collect()
    }
}

const fn factor(factor: f64, comparison: &'static str) -> Paper {
    Paper {
        factor: Some((factor, factor)),
        comparison,
    }
}

fn flash_io(size: u64) -> Vec<(&'static str, u64)> {
    // 24 variables of a block of 16^3 zones; smaller blocks for small files.
    let zones = if size < 4 << 20 { 8 } else { 16 };
    let blocks = count(size, 24 * 8 * zones * zones * zones, 1);
    vec![("blocks", blocks), ("zones", zones), ("variables", 24)]
}

/// Returns how many items of `each` bytes fit into `size`; at least `least`.
fn count(size: u64, each: u64, least: u64) -> u64 {
    (size / each).max(least)
}

/// Returns the edge of a cube of `size` bytes with elements of `each` bytes; at least `least`.
fn edge(size: u64, each: u64, least: u64) -> u64 {
    ((size as f64 / each as f64).cbrt().round() as u64).max(least)
}

const HOWISON: &str = "Howison et al. give up to 33 for the best case of GCRM, VORPAL and Chombo together (HDF5 and MPI-IO tuned against \
                       not, all to one file) and for each alone only figures";

pub const ALL: [Kernel; 9] = [
    Kernel {
        name: "coll_perf",
        program: "coll_perf",
        hints: &[],
        paper: factor(
            10.0,
            "Congiu et al., figure 4: peak perceived bandwidth with the cache on node-local SSDs (20 GB/s) over \
             collective writes to BeeGFS (2 GB/s), 512 processes; with computing between files that hides the \
             flush. Son et al. have 1.36 to 2.37 for subfiles on probed OSTs over one file, Nisar et al. up to 2.5 (Franklin) \
             and 15 (Abe) for their best kernel",
        ),
        arguments: |size| vec![("block", edge(size, 4 * 4, 1)), ("variables", 4)],
    },
    Kernel {
        name: "flash_io",
        program: "flash_io",
        hints: &[],
        paper: factor(
            20.0,
            "Congiu et al., figure 7: as for coll_perf, 40 over 2 GB/s. Son et al. have 1.7 for subfiles on probed OSTs \
             over one file",
        ),
        arguments: flash_io,
    },
    // Congiu et al. vary the number of aggregators, so they used collective buffering; the hint
    // switches it on. Without hints ROMIO uses no aggregators here.
    Kernel {
        name: "flash_io_collective",
        program: "flash_io",
        hints: &["romio_cb_write=enable"],
        paper: factor(
            20.0,
            "as for flash_io; Congiu et al. had their ranks write through aggregators, as this row does",
        ),
        arguments: flash_io,
    },
    Kernel {
        name: "s3d",
        program: "s3d",
        hints: &[],
        paper: Paper {
            factor: Some((2.0, 10.0)),
            comparison: "Nisar et al., section III.A: independent writes through I/O delegates over native collective writes, about 2 on \
                         Franklin and more than 10 on Abe. Son et al. have 1.6 for subfiles on probed OSTs over one file",
        },
        arguments: |size| vec![("block", edge(size, 8 * 16, 1)), ("species", 11)],
    },
    Kernel {
        name: "gcrm",
        program: "gcrm",
        hints: &[],
        paper: Paper {
            factor: None,
            comparison: HOWISON,
        },
        arguments: |size| {
            // Three cell-centred variables and one with six edges, 25 layers, two steps.
            vec![("cells", count(size, 8 * 25 * 9 * 2, 1)), ("steps", 2)]
        },
    },
    Kernel {
        name: "vorpal",
        program: "vorpal",
        hints: &[],
        paper: Paper {
            factor: None,
            comparison: HOWISON,
        },
        arguments: |size| vec![("block", edge(size, 3 * 8 * 2, 2)), ("steps", 2)],
    },
    Kernel {
        name: "chombo",
        program: "chombo",
        hints: &[],
        paper: Paper {
            factor: None,
            comparison: HOWISON,
        },
        arguments: |size| {
            let edge = if size < 4 << 20 { 8 } else { 16 };
            let boxes = count(size, 8 * 8 * edge * edge * edge, 1);
            vec![("boxes", boxes), ("box", edge), ("components", 8)]
        },
    },
    Kernel {
        name: "nekcem",
        program: "nekcem",
        hints: &[],
        paper: factor(
            30.0,
            "Fu et al., equation 7, worked out and not measured: time that processors are blocked with coIO over \
             the same with rbIO, at 64 processors for each writer and half of coIO's bandwidth. Measured are about 100 for both over a \
             file for each processor",
        ),
        arguments: |size| vec![("points", count(size, 136, 1))],
    },
    Kernel {
        name: "ior_hard",
        program: "ior_hard",
        hints: &[],
        paper: Paper {
            factor: None,
            comparison: "the pattern is IO500's and in none of the papers; with IOR's collective writes of 8 MB Congiu et al. \
                         have 3 (6 over 2 GB/s), the last flush included",
        },
        arguments: |size| vec![("transfers", count(size, 47008, 1))],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_near_what_is_asked() {
        let of = |name: &str, size| {
            let kernel = Kernel::named(name).expect("a kernel");
            kernel.arguments(size).join(" ")
        };
        let rank = 4 << 20;
        assert_eq!(of("coll_perf", rank), "--block 64 --variables 4");
        assert_eq!(of("flash_io", rank), "--blocks 5 --zones 16 --variables 24");
        assert_eq!(
            of("flash_io_collective", rank),
            "--blocks 5 --zones 16 --variables 24 --hint romio_cb_write=enable"
        );
        assert_eq!(of("s3d", rank), "--block 32 --species 11");
        assert_eq!(of("gcrm", rank), "--cells 1165 --steps 2");
        assert_eq!(of("vorpal", rank), "--block 44 --steps 2");
        assert_eq!(of("chombo", rank), "--boxes 16 --box 16 --components 8");
        assert_eq!(of("nekcem", rank), "--points 30840");
        assert_eq!(of("ior_hard", rank), "--transfers 89");
        for kernel in &ALL {
            assert!(
                !kernel.arguments(1).contains(&"0".to_owned()),
                "{}",
                kernel.name
            );
        }
    }

    #[test]
    fn a_factor_is_never_without_its_comparison() {
        for kernel in &ALL {
            assert!(
                kernel.paper.comparison.contains("et al."),
                "{}",
                kernel.name
            );
        }
        let text = |name| Kernel::named(name).expect("a kernel").paper.text();
        assert_eq!(text("coll_perf"), "10");
        assert_eq!(text("s3d"), "2 to 10");
        assert_eq!(text("ior_hard"), "none given");
    }
}
