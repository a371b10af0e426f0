#!/bin/sh
# fresh.sh make ROOT CLONE...                      a new Debian below ROOT, with clones of this folder
# fresh.sh enter ROOT FOLDER LINE [NAME=VALUE]...  runs a line of shell there, as the newcomer
#
# Started by `cargo xtask fresh`, in the workspace. What a newcomer has beside a Rust toolchain:
packages=git,gcc,g++,libc6-dev,ca-certificates
# The files that tell this machine's apt where its own Debian comes from, and how it reaches that:
# proxies, certificates, what is not checked.
settings='^Acquire::\(http\|https\|Check-\|Retries\).*[^"]";$'
user=1000
set -eu
verb=$1 root=$2
shift 2
toolchain=$(rustc --print sysroot)
[ "$toolchain" != /usr ] || { echo "a Rust toolchain as rustup installs it is needed"; exit 1; }

make_system() {
    if grep -q " $root/" /proc/self/mountinfo; then
        echo "something is mounted below $root"
        exit 1
    fi
    rm -rf "$root"
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    sources=$(find /etc/apt/sources.list /etc/apt/sources.list.d -type f -name '*.list' -o -name '*.sources' \
        | xargs grep -lE "^[^#]*[[:space:]]$release([[:space:]]|\$)" | sort)
    [ -n "$sources" ] || { echo "no file in /etc/apt names packages of $release"; exit 1; }
    apt-config dump | grep "$settings" >"$root.apt" || true
    # shellcheck disable=SC2086
    mmdebstrap --mode=root --variant=essential --include "$packages" --aptopt="$root.apt" \
        "$release" "$root" $sources

    mkdir -p "$root/opt/rust" "$root/opt/crates"
    echo "newcomer:x:$user:$user::/home/newcomer:/bin/sh" >>"$root/etc/passwd"
    cargo vendor --quiet --locked --versioned-dirs "$root/opt/crates" >/dev/null
    # The second is a home that its user cannot write to.
    for home in "$root/home/newcomer" "$root/home/read-only"; do
        mkdir -p "$home/.cargo"
        printf '[source.crates-io]\nreplace-with = "folder"\n\n[source.folder]\ndirectory = "/opt/crates"\n' \
            >"$home/.cargo/config.toml"
    done
    for clone; do
        git clone --quiet --no-hardlinks . "$root$clone"
    done
    chown -R "$user:$user" "$root/home/newcomer"
}

# Mounts what a running system has, hides the network, and becomes the user. Runs in namespaces
# of its own: nothing has to be unmounted, and no process is left behind. The shell stays: a process
# that becomes another user forgets that it was to die with its parent, and the rest dies with this.
enter='
    set -e
    root=$1 toolchain=$2 user=$3
    shift 3
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount --bind "$toolchain" "$root/opt/rust"
    mount -o remount,bind,ro "$root/opt/rust"
    chroot --userspec="$user:$user" --groups= "$root" /usr/bin/env -i "$@" || exit
    exit 0
'

case $verb in
make) make_system "$@" ;;
enter)
    folder=$1 line=$2
    shift 2
    # Nothing outlives this command, however it ends. What is built once needs no record for the next build.
    exec setpriv --pdeathsig KILL unshare --mount --pid --net --ipc --fork --kill-child -- \
        sh -c "$enter" enter "$root" "$toolchain" "$user" "$@" \
        PATH=/opt/rust/bin:/usr/local/bin:/usr/bin:/bin CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 \
        sh -c "cd '$folder' && $line"
    ;;
esac
