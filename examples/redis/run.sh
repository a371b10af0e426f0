#!/bin/sh
# Active defragmentation of Redis on cairn: what is resident falls while the server serves.
#
#     run.sh SOURCES LIBRARY HEADERS WORK
#
# SOURCES: an unpacked source package of Redis 7.0, LIBRARY: libcairn.so, HEADERS: the folder of cairn.h, WORK: an empty
# folder for all that this makes. Prints, in KiB, what was resident when full, when three of four keys had gone, and
# after the defragmentation, how many blocks moved, and the slowest reply meanwhile, in ms.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sources=$1 library=$2 headers=$3 work=$4
keys=300000

cp -a "$sources/." "$work/redis"
patch --quiet -d "$work/redis" -p1 <"$here/defrag.patch"
make -C "$work/redis/src" -j2 MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O2 \
    CFLAGS="-DUSE_CAIRN -I$headers" \
    LDFLAGS="-Wl,--no-as-needed $library -Wl,-rpath,$(dirname "$library")" \
    redis-server redis-cli redis-benchmark >"$work/build.log" 2>&1 || {
    tail -20 "$work/build.log" >&2
    exit 1
}
cd "$work"
./redis/src/redis-server --port 0 --unixsocket "$work/socket" --save '' --daemonize yes --logfile "$work/log" \
    --pidfile "$work/pid" --active-defrag-ignore-bytes 1mb --active-defrag-threshold-lower 5 \
    --active-defrag-cycle-min 10 --active-defrag-cycle-max 25 --lua-time-limit 0
cli() { ./redis/src/redis-cli -s "$work/socket" "$@"; }
trap 'cli shutdown nosave >/dev/null 2>&1 || true' EXIT
until [ "$(cli ping 2>/dev/null)" = PONG ]; do sleep 0.1; done

resident() { awk '/^VmRSS/ { print $2 }' "/proc/$(cat "$work/pid")/status"; }
info() { cli info "$1" | tr -d '\r' | sed -n "s/^$2://p"; }

# Values of 16 to 215 bytes; which keys go is as good as random.
start=$(resident)
cli eval "for i = 1, $keys do redis.call('set', 'key:' .. i, string.rep(string.char(33 + i % 90), 16 + i * 7 % 200)) end" \
    0 >/dev/null
full=$(resident)
cli eval "for i = 1, $keys do if i * 7919 % 10007 % 4 > 0 then redis.call('del', 'key:' .. i) end end" 0 >/dev/null
sleep 3
scattered=$(resident)

cli config set activedefrag yes >/dev/null
# Until it goes over all keys and moves nothing any more, while others read.
moved=0 quiet=0 slowest=0 rounds=0
while [ $quiet -lt 10 ] && [ $rounds -lt 200 ]; do
    ms=$(./redis/src/redis-benchmark -s "$work/socket" -t get -r $keys -n 10000 -c 10 --csv | awk -F'"' '/^"GET/ { print $16 }')
    slowest=$(echo "$ms $slowest" | awk '{ print ($1 > $2) ? $1 : $2 }')
    before=$moved moved=$(info stats active_defrag_hits) rounds=$((rounds + 1))
    [ "$moved" -gt $((before + 100)) ] && quiet=0 || quiet=$((quiet + 1))
    sleep 0.5
done
defragmented=$(resident)
wrong=$(cli eval "local wrong = 0 for i = 1, $keys do local is = redis.call('get', 'key:' .. i)
    local was = i * 7919 % 10007 % 4 == 0 and string.rep(string.char(33 + i % 90), 16 + i * 7 % 200)
    if is ~= was then wrong = wrong + 1 end end return wrong" 0)
echo "empty $start full $full scattered $scattered defragmented $defragmented" \
    "moved $moved wrong $wrong slowest $slowest"
