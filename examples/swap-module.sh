#!/bin/sh
# Takes the module out of a running server and loads it again from its file, which may be a newer one by now.
# It happens in one step: nobody is served in between, and limiters and settings stay. It closes the connections of
# all clients, since the server holds on to a command by them. Should the file not load, what ran before does again
# (from its own file, if that is another one).
#
#   swap-module.sh /usr/lib/redis/modules/librl.so -h 127.0.0.1 -p 6379
#
# What follows the file goes to redis-cli: address, user, password. The server has to be started with
# enable-module-command.
set -eu
if [ $# -eq 0 ]; then
    echo "usage: $0 MODULE [what redis-cli takes: -h HOST -p PORT]" >&2
    exit 2
fi
MODULE=$1
shift
export MODULE LC_ALL=C

stop() {
    echo "$*" >&2
    exit 1
}

# With -e an error reply is a failure.
ask() { redis-cli -e "$@"; }

# The file of the module that runs; nothing if there is none. Fails if the server doesn't say.
running() {
    ask "$@" MODULE LIST >"$work/list" || return
    awk '$0 == "name" { getline; name = $0 } $0 == "path" { getline; if (name == "rl") print }' "$work/list"
}

# Its version, as in the last list that was asked for.
version() { awk '$0 == "name" { getline; name = $0 } $0 == "ver" { getline; if (name == "rl") print }' "$work/list"; }

# NAME=VALUE for each setting. Fails if the reply is another one than the names and values of settings.
settings() {
    ask "$@" CONFIG GET 'rl.*' >"$work/reply" || return
    awk '
        NR % 2 { name = $0; if (name !~ /^rl\.[a-z-]+$/) wrong = 1; next }
        { print name "=" $0 }
        END { exit wrong || NR == 0 || NR % 2 }
    ' "$work/reply" >"$work/pairs" && sort "$work/pairs"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $MODULE in
/*) ;;
*) stop "the server needs the whole path of the file, from / on" ;;
esac

# All that can be known beforehand, before any connection is closed.
[ "$(ask "$@" ECHO ok 2>/dev/null)" = ok ] ||
    stop "the server doesn't answer this user's ECHO, by which redis-cli --pipe ends"
old=$(running "$@") || stop "the server doesn't tell its modules"
[ -n "$old" ] || stop "the server has no module rl: MODULE LOAD is enough"
old_version=$(version)
before=$(settings "$@") || stop "the server's settings (CONFIG GET rl.*) can't be read"
case $(ask "$@" MODULE UNLOAD no-such-module 2>&1 || true) in
*"no such module"*) ;;
*) stop "the server doesn't let this user unload modules: enable-module-command, or the user's rights" ;;
esac
names='rl\.'
case $before in
*rl.cl-throttle=yes*) names='(rl\.|cl\.throttle)' ;;
esac
ask "$@" ACL LIST >"$work/users" || stop "the server doesn't list its users"
named=$(grep -iE "[ (][+-]$names" "$work/users" | cut -d' ' -f2 | paste -sd' ' -) || true
[ -z "$named" ] || stop "rules that name commands of the module: of $named. Grant @ratelimit (Redis 7.4, Valkey 8), or other categories meanwhile, or upgrade by a replica"
# Subscribers and links of replication aren't closed.
ask "$@" CLIENT LIST >"$work/clients" || stop "the server doesn't list its clients"
held=$(grep -E ' flags=[A-Za-z]*[MPS][A-Za-z]* ' "$work/clients" | grep -iE " cmd=$names" | cut -d' ' -f1 | paste -sd' ' -) || true
[ -z "$held" ] || stop "subscribers or links of replication that ran a command of the module last: $held"

# One piece, which the server runs without serving anybody in between; but it reads no more than that at once.
printf '%s\n' "$before" | OLD=$old awk '
    function bulk(word) { return "$" length(word) "\r\n" word "\r\n" }
    function load(file) { return "*" words "\r\n" bulk("MODULE") bulk("LOADEX") bulk(file) settings }
    BEGIN { words = 3 }
    { name = $0; sub(/=.*/, "", name); value = substr($0, length(name) + 2) }
    value != "" { settings = settings bulk("CONFIG") bulk(name) bulk(value); words += 3 }
    END {
        printf "CLIENT KILL TYPE normal SKIPME yes\r\nMODULE UNLOAD rl\r\n%s", load(ENVIRON["MODULE"])
        if (ENVIRON["OLD"] != ENVIRON["MODULE"]) printf "%s", load(ENVIRON["OLD"])
    }' >"$work/step"
[ "$(wc -c <"$work/step")" -le 8000 ] || stop "the settings are too long for one step"

# Where I/O threads read, a connection may end a little later than it was told to, and the module refuses.
tries=1
case $(ask "$@" CONFIG GET io-threads | tail -1) in
1 | '') ;;
*) tries=30 ;;
esac
while :; do
    said=$(redis-cli "$@" --pipe <"$work/step" 2>&1) || true
    case $said in
    *"ERR Error unloading module"*) ;;
    *) break ;;
    esac
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || stop "the server doesn't unload the module; its log says why"
    sleep 0.1
done
now=$(running "$@") || stop "the server doesn't tell whether it has the module: $said"
case $now in
'') stop "THE MODULE IS NOT LOADED: neither file could be; the server's log says why. The settings were:
$before" ;;
"$MODULE") ;;
*) stop "the server doesn't load $MODULE and goes on with $now; its log says why" ;;
esac
[ "$(settings "$@")" = "$before" ] || stop "the settings aren't what they were:
$before"
echo "$now is loaded, version $(version) in the place of $old_version (100 is 0.1.0), with the settings as they were"
