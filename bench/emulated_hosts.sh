#!/bin/bash
# Several hosts on one machine: network namespaces joined by a bridge, every card shaped in both directions, and mpirun across them without ssh.
#   emulated_hosts.sh run HOSTS RANKS_PER_HOST RATE COMMAND...   makes the hosts, runs one process a rank, removes the hosts; RATE as tc says it, or "off"; several
#                                                                with commas are those of the first host, the second, ..., the last one also of all further hosts
#   emulated_hosts.sh can                                        exit 0 when this machine can, else says on stdout what is missing
#   emulated_hosts.sh rsh HOST COMMAND...                        what mpirun calls instead of ssh
# Root, iproute2 and Open MPI are needed. Names and addresses hold the number of the shell, so several may run at once; nothing is left behind.
set -euo pipefail
export LC_ALL=C
self=$(readlink -f -- "${BASH_SOURCE[0]}")

missing() {
    [[ $(id -u) -eq 0 ]] || { echo "root"; return; }
    command -v ip >/dev/null && command -v tc >/dev/null || { echo "iproute2"; return; }
    command -v mpirun.openmpi >/dev/null || { echo "Open MPI"; return; }
    ip netns add "smp$$" 2>/dev/null || { echo "network namespaces"; return; }
    # A virtual machine's kernel may lack what a container's host has.
    ip netns exec "smp$$" tc qdisc add dev lo root tbf rate 100mbit burst 32kb limit 1mb 2>/dev/null || echo "the token bucket filter (sch_tbf)"
    ip netns del "smp$$"
}

down() {
    local i
    for ((i = 0; i < hosts; ++i)); do
        ip netns del "${prefix}h$i" 2>/dev/null || true
        rm -rf "/etc/netns/${prefix}h$i"
    done
    ip netns del "${prefix}sw" 2>/dev/null || true
}

# tbf lets a card that was idle send a burst at once: 32 KiB at most, so that it is small beside what a step sends.
shape() {
    local rates
    IFS=, read -ra rates <<<"$rate"
    local own=${rates[$3]:-${rates[-1]}}
    [[ $own == off ]] || ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$own" burst 32kb limit 256kb
}

up() {
    local i j host
    ip netns add "${prefix}sw"
    ip -n "${prefix}sw" link set lo up
    ip -n "${prefix}sw" link add br0 type bridge
    ip -n "${prefix}sw" link set br0 up
    for ((i = 0; i < hosts; ++i)); do
        host="${prefix}h$i"
        ip netns add "$host"
        ip -n "$host" link set lo up
        ip -n "$host" link add eth0 type veth peer name "p$i" netns "${prefix}sw"
        ip -n "$host" addr add "10.78.0.$((i + 1))/24" dev eth0
        ip -n "$host" link set eth0 up
        ip -n "${prefix}sw" link set "p$i" master br0 up
        mkdir -p "/etc/netns/$host"
        {
            echo "127.0.0.1 localhost"
            for ((j = 0; j < hosts; ++j)); do echo "10.78.0.$((j + 1)) ${prefix}h$j"; done
        } >"/etc/netns/$host/hosts"
        shape "$host" eth0 "$i"
        shape "${prefix}sw" "p$i" "$i"
    done
}

case "${1:-}" in
    can)
        what=$(missing)
        [[ -z $what ]] || { echo "$what is missing"; exit 1; }
        ;;
    rsh)
        host=$2
        shift 2
        exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; eval "exec $*"' "$host" "$@"
        ;;
    run)
        hosts=$2 ranks=$3 rate=$4
        shift 4
        prefix="sm$$"
        trap down EXIT
        up
        list="" separator=""
        for ((i = 0; i < hosts; ++i)); do
            list+="$separator${prefix}h$i:$ranks"
            separator=","
        done
        # mpirun calls its agent with the host and a command line; a file of its own spares it arguments before them.
        agent=$(mktemp)
        printf '#!/bin/bash\nexec %q rsh "$@"\n' "$self" >"$agent"
        chmod +x "$agent"
        status=0
        ip netns exec "${prefix}h0" unshare --uts sh -c 'hostname "$0"; exec "$@"' "${prefix}h0" mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none \
            --host "$list" --map-by slot --mca plm rsh --mca plm_rsh_agent "$agent" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include eth0 \
            --mca btl self,vader,tcp --mca btl_tcp_if_include eth0 --mca btl_vader_single_copy_mechanism none "$@" || status=$?
        rm -f "$agent"
        exit $status
        ;;
    *)
        sed -n '2,7s/^# \{0,1\}//p' "$self" >&2
        exit 2
        ;;
esac
