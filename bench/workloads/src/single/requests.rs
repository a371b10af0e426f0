//! A server that gives each request a heap and drops it as a whole, where the allocator has such heaps; block by block where
//! it has none.

use crate::case::{Results, Settings};
use crate::malloc::out_of_memory;
use std::ffi::CString;
use std::hint::black_box;
use std::os::raw::c_void;
use std::ptr::null_mut;
use std::time::Instant;

/// How the allocator under test makes, uses and destroys a heap.
struct Calls {
    make: unsafe extern "C" fn() -> *mut c_void,
    allocate: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
}

impl Calls {
    fn find() -> Option<Calls> {
        ["cairn", "mi"].into_iter().find_map(|prefix| {
            let find = |call: &str| {
                let name = CString::new(format!("{prefix}_heap_{call}")).ok()?;
                // SAFETY: a string; the answer is an address or null.
                let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                (!found.is_null()).then_some(found)
            };
            let (make, allocate, destroy) = (find("new")?, find("malloc")?, find("destroy")?);
            // SAFETY: both projects declare these functions so.
            unsafe {
                Some(Calls {
                    make: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(
                        make,
                    ),
                    allocate: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
                    >(allocate),
                    destroy: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(
                        destroy,
                    ),
                })
            }
        })
    }
}

/// What a request has: a heap, or its blocks.
struct Request<'a, const MOST: usize> {
    calls: Option<&'a Calls>,
    heap: *mut c_void,
    blocks: [*mut c_void; MOST],
    count: usize,
}

impl<const MOST: usize> Request<'_, MOST> {
    fn new(calls: Option<&Calls>) -> Request<'_, MOST> {
        // SAFETY: no preconditions.
        let heap = calls.map_or(null_mut(), |calls| unsafe { (calls.make)() });
        assert!(calls.is_none() || !heap.is_null(), "no memory for a heap");
        Request { calls, heap, blocks: [null_mut(); MOST], count: 0 }
    }

    /// Allocates a block and writes its first word.
    fn allocate(&mut self, size: usize) {
        // SAFETY: the heap is there; a block of at least a word.
        unsafe {
            let block = black_box(match self.calls {
                Some(calls) => (calls.allocate)(self.heap, size),
                None => libc::malloc(size),
            });
            if block.is_null() {
                out_of_memory(size);
            }
            block.cast::<usize>().write_volatile(block.addr());
            self.blocks[self.count] = block;
        }
        self.count += 1;
    }

    fn end(self) {
        for &block in &self.blocks[..self.count] {
            // SAFETY: its block. All have kept what was written.
            assert_eq!(unsafe { block.cast::<usize>().read_volatile() }, block.addr());
        }
        // SAFETY: nobody uses the blocks after this.
        unsafe {
            match self.calls {
                Some(calls) => (calls.destroy)(self.heap),
                None => self.blocks[..self.count].iter().for_each(|&block| libc::free(block)),
            }
        }
    }
}

/// The sizes of a request's blocks, 16 to 128 bytes.
fn size(nth: usize) -> usize {
    16 + nth * 37 % 113
}

/// One request after the other.
pub(crate) fn served(settings: &Settings) -> Results {
    let calls = Calls::find();
    let requests = settings.scaled(300_000);
    let start = Instant::now();
    for _ in 0..requests {
        let mut request = Request::<100>::new(calls.as_ref());
        (0..100).for_each(|nth| request.allocate(size(nth)));
        request.end();
    }
    Results::ns(start.elapsed(), requests)
}

/// 10,000 at once, each with ten blocks.
pub(crate) fn live(settings: &Settings) -> Results {
    let calls = Calls::find();
    let start = Instant::now();
    let count = settings.scaled(10_000);
    let mut requests: Vec<_> = (0..count).map(|_| Request::<10>::new(calls.as_ref())).collect();
    for request in &mut requests {
        (0..10).for_each(|nth| request.allocate(size(nth)));
    }
    requests.into_iter().for_each(Request::end);
    Results::ns(start.elapsed(), count)
}
