# Builds tests without running them, and lists of each its name, its directory, its program, and, if
# CAIRN is the folder of cairn, its program with cairn, with its FEATURES, as #[global_allocator]:
#
#     rust-tests.sh SHARED WHAT...    of the packages in these folders, or of the crates below
#
# What does not build is missing: a test with a global allocator of its own, for one, cannot have
# cairn's as well.
set -e
unset RUSTFLAGS
shared=$1
shift
export CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0

# Each with its version and perhaps its features.
quick="hashbrown:0.16 crossbeam-epoch:0.9 crossbeam-deque:0.8 crossbeam-queue:0.3 bytes:1 smallvec:1
    rayon-core:1"
full="crossbeam-channel:0.5 crossbeam-utils:0.8 rayon:1 im:15 bumpalo:3:collections,boxed tokio:1:full"

# built FOLDER TARGET: name and program of each test, in order.
built() {
    (cd "$1" && cargo build --tests --keep-going --quiet --jobs 2 --message-format json \
        --features "$features" --target-dir "$shared/rust-target-$2" || true) |
        jq -r 'select(.executable and .profile.test) |
            "'"$name"'/\(.target.kind[0])-\(.target.name) \(.executable)"' | LC_ALL=C sort
}

# tests FOLDER: lists them.
tests() {
    built "$1" "${RUSTUP_TOOLCHAIN:-plain}" >"$shared/tests"
    if [ -n "$CAIRN" ]; then
        copy=$1-on-cairn$FEATURES
        if [ ! -e "$copy" ]; then
            cp -a "$1" "$copy"
            printf '\n[dependencies.cairn-malloc]\npath = "%s"\nfeatures = [%s]\n' "$CAIRN" "${FEATURES:+\"$FEATURES\"}" >>"$copy/Cargo.toml"
            printf '\n#[global_allocator]\nstatic ON_CAIRN: cairn::Cairn = cairn::Cairn;\n' >>"$copy/src/lib.rs"
        fi
        # A test that uses nothing of the crate is linked without it, and so without its allocator.
        # The message for a bad pointer is in every program that has the allocator.
        built "$copy" "on-cairn$FEATURES" | while read -r test program; do
            ! grep -q 'cairn: ' "$program" || echo "$test $program"
        done >"$shared/on-cairn"
        LC_ALL=C join "$shared/tests" "$shared/on-cairn" >"$shared/both"
        mv "$shared/both" "$shared/tests"
    fi
    sed "s|^\([^ ]*\)|\1 $1|" "$shared/tests"
}

for what in "$@"; do
    case $what in
    /*)
        name=$(basename "$what") features=
        tests "$what"
        continue
        ;;
    quick) crates=$quick ;;
    full) crates=$full ;;
    esac
    for crate in $crates; do
        name=${crate%%:*} version=${crate#*:} features=
        case $version in *:*) features=${version#*:} ;; esac
        place=$(sh "$(dirname "$0")/sources.sh" "$shared" crate "$name" "${version%%:*}" | tail -n 1)
        tests "${place% *}"
    done
done
