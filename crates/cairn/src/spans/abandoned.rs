//! Owns: the lists of spans that nobody holds but that have free blocks, one per size class.
//! Idea: what one thread leaves behind, or cannot use, the next one that needs it takes.
//! Never: touches blocks but to make holes.
//! Threads: any; one lock per class, held for a few link changes; nothing else is locked inside.
//! Checked: loom models of the word's states; the stress tests.
//! Story: docs/design/remote-frees.md

use crate::base::{AtomicUsize, CLASS_COUNT, Ordering, SizeClass, fence};
use crate::map::{END, FreeList, OWNER_ABANDONED, address_map, heads_from};
use crate::os::Lock;
use crate::spans::aside::{Step, thinner};
use crate::spans::span::Span;
use crate::spans::span_list::SpanList;
use crate::spans::thin::recount;
use crate::store::{Known, Live};

struct AbandonedSpans {
    spans: Lock<SpanList>,
    /// The list's length; lets a refill pass by without the lock.
    count: AtomicUsize,
    /// How many spans have been taken out for refills, ever. Relaxed: a measure; the lock's holder writes it.
    reclaimed: AtomicUsize,
}

// SAFETY: spans in the list are reached under the lock only.
unsafe impl Sync for AbandonedSpans {}

/// The class of which `thin_next` looks at a span. Relaxed: any will do.
static NEXT: AtomicUsize = AtomicUsize::new(0);

static ABANDONED: [AbandonedSpans; CLASS_COUNT] = [const {
    AbandonedSpans {
        spans: Lock::new(SpanList::EMPTY),
        count: AtomicUsize::new(0),
        reclaimed: AtomicUsize::new(0),
    }
}; CLASS_COUNT];

/// Lets go of a span that has blocks in use and room for more. False if everything in it has
/// been freed meanwhile: then the caller still holds it.
///
/// # Safety
/// The caller holds `span`, which is in no list.
pub(crate) unsafe fn list(span: *mut Span) -> bool {
    // SAFETY: the caller holds the span until `list` succeeds.
    let (abandoned, live, word) = unsafe {
        (*span).disown();
        (&ABANDONED[(*span).class().index()], (*span).used(), (*span).word())
    };
    let mut spans = abandoned.spans.lock();
    // SAFETY: in no list; the lock is held before the word says LISTED.
    unsafe { spans.push_front(span) };
    let left = word.list(live);
    if !left {
        // SAFETY: put in just now.
        unsafe { spans.remove(span) };
    }
    abandoned.count.store(spans.len(), Ordering::Relaxed);
    left
}

/// Lets go of a span that has room for more: lists it, or gives its run back if nothing in it is in
/// use.
///
/// # Safety
/// As for `list`.
#[inline(never)]
pub(crate) unsafe fn list_or_release(span: *mut Span) {
    // SAFETY: the caller owns the span; if it cannot be listed, nothing is in use any more.
    unsafe {
        if (*span).used() == 0 || !list(span) {
            (*span).empty(FreeList::EMPTY);
            (*span).release();
        }
    }
}

/// Whether a free to the span at a slice makes its thread the owner; a hint, as the word says it.
///
/// # Safety
/// The caller has a block of that span to free.
#[inline(always)]
pub(crate) unsafe fn is_claimable(index: usize) -> bool {
    let owner = &address_map::descriptor_at(index).owner;
    // SAFETY: it has a word.
    owner.load(Ordering::Relaxed) == OWNER_ABANDONED
        && unsafe { address_map::remote_word(index).is_claimable() }
}

/// How many spans of `class` are listed. Relaxed: who sees it late comes again.
pub(crate) fn count(class: SizeClass) -> usize {
    ABANDONED[class.index()].count.load(Ordering::Relaxed)
}

/// How many slices of spans have been taken out for refills, ever.
pub(crate) fn reclaimed() -> usize {
    let slices = |class: SizeClass| {
        class.span_slices() * ABANDONED[class.index()].reclaimed.load(Ordering::Relaxed)
    };
    SizeClass::all().map(slices).sum()
}

/// Takes the latest span of `class`, with what was pending; the caller owns it then.
pub(crate) fn reclaim(class: SizeClass) -> Option<(*mut Span, FreeList)> {
    let abandoned = &ABANDONED[class.index()];
    let mut spans = abandoned.spans.lock();
    let mut at = spans.first();
    while !at.is_null() {
        // SAFETY: members are valid, and their links are the lock's.
        let next = unsafe { SpanList::after(at) };
        let taken = take(abandoned, &mut spans, at);
        if taken.is_some() {
            let before = abandoned.reclaimed.load(Ordering::Relaxed);
            abandoned.reclaimed.store(before.wrapping_add(1), Ordering::Relaxed);
            return taken;
        }
        // A push has claimed it: there are as many of these as threads that wait for the lock.
        at = next;
    }
    None
}

/// Takes the span at a slice, with what was pending, if it is a listed one of `class`, and much thinner than when it was listed;
/// the caller owns it then.
pub(crate) fn take_thinner(index: usize, class: SizeClass) -> Option<(*mut Span, FreeList)> {
    let span: *mut Span = address_map::slot(index).cast();
    // SAFETY: what has been described is committed, and has been a span.
    let word = unsafe { address_map::remote_word(index) };
    // A guess, which the lock verifies.
    word.listed().filter(|&(then, live)| live <= thinner(class, then, Step::Fine))?;
    let abandoned = &ABANDONED[class.index()];
    let mut spans = abandoned.spans.lock();
    word.listed_live()?;
    // Acquire: who sees that it is listed sees its class. One of this class stays in this list, whose lock is held.
    fence(Ordering::Acquire);
    let is_meant = address_map::descriptor_at(index).class() == class;
    if is_meant { take(abandoned, &mut spans, span) } else { None }
}

/// Becomes the owner of a member of the list; None if a push has just claimed it, and waits for
/// this lock.
#[inline(never)]
fn take(
    abandoned: &AbandonedSpans,
    spans: &mut SpanList,
    span: *mut Span,
) -> Option<(*mut Span, FreeList)> {
    // SAFETY: members are valid, and their links and constant fields are the lock's.
    let pending = unsafe { (*span).word().reclaim((*span).base()) }?;
    // SAFETY: it is in this list.
    unsafe { spans.remove(span) };
    abandoned.count.store(spans.len(), Ordering::Relaxed);
    Some((span, pending))
}

/// Gives back the pages on which nothing lives in all these spans, once around.
pub(crate) fn make_holes() {
    for class in SizeClass::all() {
        let abandoned = &ABANDONED[class.index()];
        for _ in 0..count(class) {
            let mut spans = abandoned.spans.lock();
            let oldest = spans.last();
            if oldest.is_null() {
                break;
            }
            let Some((span, pending)) = take(abandoned, &mut spans, oldest) else {
                // SAFETY: it is in this list, whose lock is held.
                unsafe { pass_by(&mut spans, oldest) };
                continue;
            };
            drop(spans);
            // SAFETY: this thread holds it now, and it is in no list.
            unsafe { thin(span, pending) };
        }
    }
}

/// Gives back the pages on which nothing lives in the oldest span of the next class that has any, if a quarter of what was in
/// use when it was listed has been freed since. For threads that shrink: others' blocks are in their spans, too.
#[inline(never)]
pub(crate) fn thin_next() {
    let next = NEXT.load(Ordering::Relaxed);
    let mut classes =
        SizeClass::all().filter(|class| class.index() >= next).chain(SizeClass::all());
    let Some(class) = classes.find(|&class| count(class) > 0) else { return };
    NEXT.store((class.index() + 1) % CLASS_COUNT, Ordering::Relaxed);
    let abandoned = &ABANDONED[class.index()];
    let mut spans = abandoned.spans.lock();
    let oldest = spans.last();
    if oldest.is_null() {
        return;
    }
    // SAFETY: a member is valid.
    let listed = unsafe { (*oldest).word() }.listed();
    if listed.is_none_or(|(then, live)| live > then - then / 4) {
        // SAFETY: it is in this list, whose lock is held.
        unsafe { pass_by(&mut spans, oldest) };
        return;
    }
    let taken = take(abandoned, &mut spans, oldest);
    drop(spans);
    if let Some((span, pending)) = taken {
        // SAFETY: this thread holds it now, and it is in no list.
        unsafe { thin(span, pending) };
    }
}

/// The list's last span comes first: it does not pay, or a push has claimed it, whose thread waits for the lock or, in a forked
/// child, is not there.
///
/// # Safety
/// It is in that list, whose lock is held.
unsafe fn pass_by(spans: &mut SpanList, span: *mut Span) {
    // SAFETY: the caller's.
    unsafe {
        spans.remove(span);
        spans.push_front(span);
    }
}

/// Gives back the pages of a span on which nothing lives, and lists it again.
///
/// # Safety
/// The caller holds the span, which is in no list; the blocks have been pending there.
unsafe fn thin(span: *mut Span, pending: FreeList) {
    // SAFETY: the caller's.
    unsafe {
        (*span).absorb(pending);
        (*span).make_holes();
        list_or_release(span);
    }
}

/// Takes out a span that the caller's push has claimed as empty.
///
/// # Safety
/// The push said `ClaimedEmpty`.
pub(crate) unsafe fn remove(span: *mut Span, class: SizeClass) {
    let abandoned = &ABANDONED[class.index()];
    let mut spans = abandoned.spans.lock();
    // SAFETY: only its claimer takes a claimed span out.
    unsafe { spans.remove(span) };
    abandoned.count.store(spans.len(), Ordering::Relaxed);
}

/// In a forked child, before it has a second thread: a list that another thread was changing is built
/// anew.
pub(crate) fn settle_in_child() {
    for class in SizeClass::all() {
        let abandoned = &ABANDONED[class.index()];
        if !abandoned.spans.settle_in_child() {
            continue;
        }
        let mut spans = abandoned.spans.lock();
        *spans = SpanList::EMPTY;
        let abandoned_ones = (OWNER_ABANDONED, class);
        for (index, ..) in heads_from(0).filter(|head| (head.1, head.2) == abandoned_ones) {
            // SAFETY: a span's slices are committed.
            if unsafe { address_map::remote_word(index) }.listed_live().is_some() {
                // SAFETY: a listed span of this class, in no list any more; the lock is held.
                unsafe { spans.push_front(address_map::slot(index).cast()) };
            }
        }
        abandoned.count.store(spans.len(), Ordering::Relaxed);
    }
}

/// Holds the lock of one list, for tests.
#[cfg(test)]
pub(crate) fn hold(class: SizeClass) -> impl Drop {
    ABANDONED[class.index()].spans.lock()
}

impl Span {
    /// Forgets the lists of an owner that no longer exists: all blocks count as in use, but those that
    /// are pending. Those that only its lists knew stay lost.
    #[inline(never)]
    pub(crate) fn forget_lists(&mut self) {
        let blocks = self.layout().blocks;
        // SAFETY: the caller's span.
        unsafe { Live::forget(self.base(), self.layout().slices.into()) };
        self.forget_aside();
        self.local_free = END;
        self.carved = recount(self.index(), self.class(), self.carved, blocks);
        self.set_used(u32::from(blocks), 0);
        self.clear_event();
    }
}
