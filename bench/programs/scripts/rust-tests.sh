# Builds tests without running them, and lists of each its name, its directory, its program, and, if
# the folder of cairn is given, its program with cairn as #[global_allocator]:
#
#     rust-tests.sh SHARED FOLDER                            of the package in this folder
#     rust-tests.sh SHARED CRATE:VERSION[:FEATURES] [CAIRN]  of a crate
#
# What does not build is missing: a test with a global allocator of its own, for one, cannot have
# cairn's as well.
set -e
unset RUSTFLAGS
shared=$1 what=$2 cairn=$3 features=
export CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0

# tests FOLDER TARGET: name and program of each, in order.
tests() {
    (cd "$1" && cargo build --tests --keep-going --quiet --jobs 2 --message-format json \
        --features "$features" --target-dir "$shared/rust-target-$2" || true) |
        jq -r 'select(.executable and .profile.test) |
            "'"$name"'/\(.target.kind[0])-\(.target.name) \(.executable)"' | LC_ALL=C sort
}

case $what in
/*) name=$(basename "$what") folder=$what target=${RUSTUP_TOOLCHAIN:-plain} ;;
*)
    name=${what%%:*} target=plain
    version=${what#*:}
    case $version in *:*) features=${version#*:} ;; esac
    folder=$(sh "$(dirname "$0")/sources.sh" "$shared" crate "$name" "${version%%:*}" | tail -n 1)
    folder=${folder% *}
    ;;
esac
tests "$folder" "$target" >"$shared/tests"
if [ -n "$cairn" ]; then
    copy=$folder-on-cairn
    if [ ! -e "$copy" ]; then
        cp -a "$folder" "$copy"
        printf '\n[dependencies.cairn-malloc]\npath = "%s"\n' "$cairn" >>"$copy/Cargo.toml"
        printf '\n#[global_allocator]\nstatic ON_CAIRN: cairn::Cairn = cairn::Cairn;\n' >>"$copy/src/lib.rs"
    fi
    # A test that uses nothing of the crate is linked without it, and so without its allocator.
    # The message for a bad pointer is in every program that has the allocator.
    tests "$copy" linked | while read -r test program; do
        ! grep -q 'cairn: ' "$program" || echo "$test $program"
    done >"$shared/linked"
    LC_ALL=C join "$shared/tests" "$shared/linked" >"$shared/both"
    mv "$shared/both" "$shared/tests"
fi
sed "s|^\([^ ]*\)|\1 $folder|" "$shared/tests"
