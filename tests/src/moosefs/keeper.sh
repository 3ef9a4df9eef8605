# Runs what the MooseFS harness asks for, one line of shell at a time, and removes everything when its input
# ends, which also happens when the test program is killed. ROOT is the cluster's directory, TAG the prefix of
# the names of its network namespaces.
set -u
# Messages of the shell itself (that a daemon was killed) are noise.
exec 3>&2 2>/dev/null
# The test program may be gone when an answer is written.
trap : PIPE

while IFS= read -r line; do
    eval "$line" </dev/null >"$ROOT/said" 2>&1 3>&-
    echo $?
done

# Kill all daemons before unmounting: nothing can wait in a mount whose client is gone.
daemons=$(jobs -p)
[ -z "$daemons" ] || kill -9 $daemons
wait
exec 2>&3
# Read the whole table first: unmounting while reading it would miss lines.
mapfile -t mounts </proc/self/mountinfo
for line in "${mounts[@]}"; do
    read -r _ _ _ _ point _ <<<"$line"
    case $point in
    "$ROOT"/*) umount "$point" 2>/dev/null || umount -l "$point" ;;
    esac
done
for namespace in /run/netns/"$TAG" /run/netns/"$TAG"-*; do
    [ -e "$namespace" ] || continue
    # A helper process of a daemon ends by itself, soon after the daemon.
    for _ in {1..500}; do
        [ -z "$(ip netns pids "${namespace##*/}")" ] && break
        sleep 0.01
    done
    ip netns del "${namespace##*/}"
done
rm -rf "$ROOT"
