# Brings sources, once, and says as its last line where they are and their version:
#
#     sources.sh SHARED debian PACKAGE       Debian's source package, patched as Debian builds it
#     sources.sh SHARED crate NAME VERSION   a crate, in a workspace of its own
#
# Nothing of the system is changed: apt gets lists and a cache of its own, made from the system's.
set -e
shared=$1 kind=$2 name=$3

# One of apt's tools, for which every repository has its sources switched on.
apt() {
    tool=$1
    shift
    "$tool" -o APT::Sandbox::User=root -o Dir::Etc::sourcelist=none \
        -o Dir::Etc::sourceparts="$shared/apt/sources.list.d" \
        -o Dir::State::lists="$shared/apt/lists" -o Dir::Cache="$shared/apt/cache" "$@"
}

if [ "$kind" = debian ]; then
    home=$shared/sources/$name
    mkdir -p "$home" "$shared/apt/sources.list.d" "$shared/apt/lists/partial" \
        "$shared/apt/cache/archives/partial"
    cd "$home"
    if [ ! -e .done ]; then
        for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
            [ ! -f "$file" ] || cp "$file" "$shared/apt/sources.list.d/"
        done
        # Of a line, and of a paragraph.
        sed -i -e 's/^deb /deb-src /' -e 's/^Types:.*\<deb\>.*/Types: deb-src/' \
            "$shared"/apt/sources.list.d/*
        if ! apt apt-get source "$name"; then
            apt apt-get update
            # A mirror may list a version that it does not carry; an older one will do.
            for version in $(apt apt-cache showsrc --only-source "$name" | sed -n 's/^Version: //p'); do
                ! apt apt-get source "$name=$version" || break
            done
        fi
    fi
    directory=$(echo "$home"/*/) version=$(echo *.dsc)
    [ -d "$directory" ]
    version=${version#*_}
    version=${version%.dsc}
else
    home=$shared/crates/$name
    mkdir -p "$home"
    cd "$home"
    if [ ! -e .done ]; then
        cat >Cargo.toml <<END
[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[workspace]
[dependencies]
$name = "$4"
END
        : >lib.rs
        cargo tree --depth 1 --prefix none >tree
    fi
    version=$(sed -n "s/^$name v\([^ ]*\).*/\1/p" tree)
    directory=$home/$name-$version
    if [ ! -e .done ]; then
        rm -rf "$directory"
        cp -a "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-$version" .
        chmod -R u+w "$directory"
        grep -q '^\[workspace\]' "$directory/Cargo.toml" ||
            printf '\n[workspace]\n' >>"$directory/Cargo.toml"
    fi
fi
touch "$home/.done"
echo "${directory%/} $version"
