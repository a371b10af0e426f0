#!/bin/sh
# link.sh ARCHIVE FOLDER NAME VERSION
#
# Makes what programs are linked with, from the archive that cargo builds: NAME.so.VERSION and the
# links to it, NAME.a, and an object file for the front of a link line. NAME is libcairn or
# libcairn-hardened. CC is the compiler, if it is not cc, perhaps with words before it or after it.
#
# Cargo makes no shared library: it would give the linker an anonymous version script, beside which
# a linker takes no other. docs/design/abi.md has the long story.
set -eu
archive=$1 folder=$2 name=$3 version=$4
abi=0
scripts=$(dirname "$0")
compile() {
    if command -v "${CC:-cc}" >/dev/null; then "${CC:-cc}" "$@"; else $CC "$@"; fi
}
mkdir -p "$folder"
made=$(mktemp -d "$folder/.link-XXXXXX")
trap 'rm -rf "$made"' EXIT
object=$made/${name#lib}.o

# What `malloc` reaches is all of cairn. The rest of the archive is the compiler's, and its own
# sections of debug information name folders of this machine.
compile -r -nostdlib -o "$object" -Wl,-u,malloc -Wl,-S "$archive"
ar rcsD "$made/$name.a" "$object"
# Thread exit and fork handlers point into the library: it stays until the process ends. The two
# builds have two sonames: what a program linked with one relies on may be missing in the other.
share() {
    compile -shared -s -o "$made/$name.so.$version" "$object" \
        -Xlinker --version-script="$scripts/libcairn.map" -Wl,-soname,"$name.so.$abi" \
        -Wl,-z,nodelete,-z,now,-z,relro,-z,noexecstack,--gc-sections,--build-id=sha1 "$@"
}
# Some linkers take no such script.
share -Wl,-T,"$scripts/rare.ld" 2>/dev/null || share
ln -s "$name.so.$version" "$made/$name.so.$abi"
ln -s "$name.so.$abi" "$made/$name.so"
# Each is replaced as a whole: somebody may be using the old one. Nobody executes them.
chmod 644 "$made"/*
mv -f "$made"/* "$folder"
