//! What `rdcp` needs to start: no RDMA library, so that one binary runs with and without them.

use std::process::Command;

#[test]
fn starts_without_rdma_libraries() {
    let output = Command::new("readelf")
        .args(["--dynamic", "--wide", env!("CARGO_BIN_EXE_rdcp")])
        .output()
        .expect("readelf (binutils) is there, as ./run test sees to it");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .collect();
    assert!(
        needed.iter().any(|line| line.contains("libc.so")),
        "the list is read rightly: {text}"
    );
    for line in &needed {
        // A call of a function that rdma-sys declares, in place of one in sys::verbs::library.
        assert!(!line.contains("libibverbs"), "{line}");
        assert!(!line.contains("librdmacm"), "{line}");
    }
}
