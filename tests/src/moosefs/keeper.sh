# Runs what the MooseFS harness asks for, one line of shell at a time, and clears everything away
# when its input ends, which it also does when the test program is killed.
# ROOT: the cluster's directory. TAG: how its network namespaces are named.
set -u
# The shell's own remarks (that a daemon was killed) are noise.
exec 3>&2 2>/dev/null
# Nobody may be left to hear the answer.
trap : PIPE

while IFS= read -r line; do
    eval "$line" </dev/null >"$ROOT/said" 2>&1 3>&-
    echo $?
done

# Killed clients first: nothing can wait in a mount without one.
daemons=$(jobs -p)
[ -z "$daemons" ] || kill -9 $daemons
wait
exec 2>&3
# Read first: who unmounts while reading misses lines.
mapfile -t mounts </proc/self/mountinfo
for line in "${mounts[@]}"; do
    read -r _ _ _ _ point _ <<<"$line"
    case $point in
    "$ROOT"/*) umount "$point" 2>/dev/null || umount -l "$point" ;;
    esac
done
for namespace in /run/netns/"$TAG" /run/netns/"$TAG"-*; do
    [ -e "$namespace" ] || continue
    # A daemon's helper process ends by itself, soon after it.
    for _ in {1..500}; do
        [ -z "$(ip netns pids "${namespace##*/}")" ] && break
        sleep 0.01
    done
    ip netns del "${namespace##*/}"
done
rm -rf "$ROOT"
