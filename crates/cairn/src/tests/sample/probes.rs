//! The probes: what a sample stands for.

use crate::samples::probes::stands_for;

#[test]
fn the_weight_is_that_of_the_formula() {
    for rate in [1, 1 << 10, 100_000, 512 << 10, 1 << 30] {
        for step in 0..1000 {
            let weighed = (16.0 * 1.04_f64.powi(step)) as usize;
            if weighed >> 47 != 0 {
                break;
            }
            // A large one, so that the rest of a byte is little.
            let asked = 1 << 30;
            let exact = asked as f64 / -(-(weighed as f64) / rate as f64).exp_m1();
            let found = stands_for(asked, weighed, rate) as f64;
            assert!(
                (found / exact - 1.0).abs() < 1e-7,
                "{weighed} at {rate}: {found}, not {exact}"
            );
        }
    }
}

#[test]
fn it_is_rounded() {
    assert_eq!(stands_for(0, 16, 512 << 10), 0);
    assert_eq!(stands_for(10 << 20, 10 << 20, 1), 10 << 20);
    // 100 / (1 - exp(-112 / 524288)) is 468,164.29.
    assert_eq!(stands_for(100, 112, 512 << 10), 468_164);
}
