#!/bin/sh
# Takes the module out of a running server and loads it again from its file, which may be a newer one by now.
# It happens in one step: nobody is served in between, and limiters and settings stay. It closes the connections of
# all clients, since the server may hold on to a command by them, and tries again while a server with I/O
# threads still does.
#
#   swap-module.sh /usr/lib/redis/modules/librl.so -h 127.0.0.1 -p 6379
#
# What follows the file goes to redis-cli. The server has to be started with enable-module-command.
set -eu
if [ $# -eq 0 ]; then
    echo "usage: $0 MODULE [what redis-cli takes: -h HOST -p PORT]" >&2
    exit 2
fi
MODULE=$1
shift
export MODULE LC_ALL=C

if redis-cli "$@" ACL LIST | grep -i '[ (][+-]rl\.'; then
    echo "these users' rules name commands of the module: grant them by @ratelimit, or take them out meanwhile" >&2
    exit 1
fi

# Three commands in one piece: the server runs them one after the other. The settings become load arguments.
swap() {
    redis-cli "$@" CONFIG GET 'rl.*' | awk '
        function bulk(word) { return "$" length(word) "\r\n" word "\r\n" }
        BEGIN { load = bulk("MODULE") bulk("LOAD") bulk(ENVIRON["MODULE"]); words = 3 }
        NR % 2 { name = $0; next }
        $0 != "" { load = load bulk(name) bulk($0); words += 2 }
        END { printf "CLIENT KILL TYPE normal SKIPME yes\r\nMODULE UNLOAD rl\r\n*%d\r\n%s", words, load }
    ' | redis-cli "$@" --pipe 2>&1
}

for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    said=$(swap "$@") || true
    case $said in
    *"errors: 0, replies: 3"*) exit 0 ;;
    *"errors: 2, replies: 3"*) sleep 0.1 ;; # not taken out, hence not loaded twice
    *) break ;;
    esac
done
echo "$said" >&2
redis-cli "$@" MODULE LIST | grep -qx rl || echo "THE MODULE IS NOT LOADED" >&2
echo "the server's log says why" >&2
exit 1
