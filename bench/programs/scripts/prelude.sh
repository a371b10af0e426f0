# What the scripts of programs.toml share. A server that is still there at the end is killed.
server=
trap '[ -z "$server" ] || kill -KILL $server' EXIT
trap 'exit 1' INT TERM

# ready COMMAND...: waits until it succeeds, as long as $server lives.
ready() {
    for look in $(seq 900); do
        ! "$@" >/dev/null 2>&1 || return 0
        kill -0 "$server"
        sleep 0.1
    done
    return 1
}

# lacks FILE PATTERN: ends the script if such a line is there.
lacks() {
    ! grep -E -e "$2" "$1" >&2 || exit 1
}

# home DIRECTORY ACCOUNT: makes the directory, and $as, which runs a command as that user or as
# nobody: some servers refuse to run as root.
home() {
    mkdir -m 700 "$1"
    as=
    [ "$(id -u)" = 0 ] || return 0
    user=$2
    id -u "$user" >/dev/null 2>&1 || user=nobody
    chown "$user:" "$1"
    as="setpriv --reuid=$user --regid=$(id -g "$user") --clear-groups"
}

# Waits for the end of $server, which was told to, and shows its log. It has to end well.
ended() {
    wait "$server"
    server=
    cat server.log >&2
}

# under LIBRARY COMMAND...: runs a load, and says the most KiB that $server had by then: its own peak,
# which the kernel knows exactly, or what it had with its children, shared pages counted once. The
# loader goes on without a library that it cannot load, so that is looked at.
under() {
    grep -q "$1" "/proc/$server/maps"
    shift
    children=$(cat "/proc/$server/task/$server/children")
    if [ -z "$children" ]; then
        "$@"
        sed -n 's/^VmHWM:/peak_kib/p' "/proc/$server/status"
        return
    fi
    "$@" &
    load=$!
    while kill -0 $load 2>/dev/null; do
        sleep 0.1
        for process in $server $(cat "/proc/$server/task/$server/children"); do
            cat "/proc/$process/smaps_rollup" 2>/dev/null || true
        done | awk '/^Pss:/ { sum += $2 } END { print "peak_kib", sum }'
    done
    wait $load
}

# start_redis LIBRARY: Debian links its server with jemalloc, so without a library the C library's
# malloc is preloaded in front of that. All columns carry jemalloc's start-up cost.
start_redis() {
    rm -f socket
    LD_PRELOAD=${1:-libc.so.6} redis-server --port 0 --appendonly no --unixsocket socket --save '' \
        >server.log 2>&1 &
    server=$!
    ready redis-cli -s socket ping
}
