# Builds glibc's tests outside of its tree, against the glibc that is installed:
#
#     glibc.sh support SHARED           its helpers, as far as they compile, as an archive
#     glibc.sh test SHARED FILE PROGRAM one test
#
# The few private headers that the system has nothing in the place of are given to them; those of
# sysdeps/generic only if nobody else has them. Runs in glibc's tree.
set -e
headers=$2/glibc-headers objects=$2/glibc-support

# A compiler that knows what malloc does would do away with calls.
compile() {
    gcc -std=gnu11 -O2 -g -w -fno-builtin -fcommon -D_GNU_SOURCE -DTEST_NO_MALLOPT \
        -DTIMEOUTFACTOR=1 '-Dlibc_hidden_proto(x)=' -include limits.h \
        -I"$headers" -Isupport -idirafter sysdeps/generic "$@"
}

if [ "$1" = test ]; then
    # Some come with a malloc of their own, in a file beside them.
    aux=$(echo "$3" | sed -n 's/tst-interpose-\(static-\)\{0,1\}\(.*\)/tst-interpose-aux-\2/p')
    # By its whole path: some read their own source.
    compile -o "$4" "$PWD/$3" $aux "$objects/libsupport.a" -pthread -ldl -lrt -lm
    exit
fi
mkdir -p "$headers" "$objects"
for header in include/*.h; do
    name=${header#include/}
    [ -e "/usr/include/$name" ] || [ -e "/usr/include/x86_64-linux-gnu/$name" ] ||
        cp "$header" "$headers"
done
ln -sfn "$PWD/support" "$headers/support"
# Places in a build tree, which is not there.
for place in SRC OBJ INST LIB BIN SBIN SLIB ROOTSBIN COMPLOCALE; do
    places="$places -D${place}DIR_PATH=\"/\""
done
for file in support/*.c; do
    name=$(basename "$file" .c)
    # Main functions of tools are no helpers.
    case $name in *-run | *-container | links-dso-program*) continue ;; esac
    compile $places '-DOBJDIR_ELF_LDSO_PATH="/"' -c -o "$objects/$name.o" "$file" 2>/dev/null || true
done
[ "$(ls "$objects"/*.o | wc -l)" -gt 50 ]
ar rcs "$objects/libsupport.a" "$objects"/*.o
