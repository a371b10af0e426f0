//! A program that depends on the packaged core.

#[global_allocator]
static ALLOCATOR: cairn::Cairn = cairn::Cairn;

fn main() {
    for size in [100, 100_000, 100_000_000] {
        let mut block = vec![7u8; size].into_boxed_slice();
        assert_eq!(cairn::base(&block[size / 2]), Some(block.as_mut_ptr()));
    }
    println!("on cairn");
}
