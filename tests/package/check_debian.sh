#!/bin/bash
# Usage: check_debian.sh PACKAGE.deb [SUITE]      (as root, with debootstrap and a network; some minutes)
# The package in a fresh root of Debian (bookworm): apt installs it with what it needs and nothing else, a user who is not
# root finds the tools with their data, man pages and completions, and every command of the tutorial prints what it shows.
# Exit code 77 where debootstrap or root is missing.
set -euo pipefail

package=$(readlink -f -- "${1:?which package? cd build && cpack -G DEB}")
suite=${2:-bookworm}
source=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../.." && pwd -P)
[[ $(id -u) -eq 0 ]] && command -v debootstrap >/dev/null || {
    echo "skipped: this takes root and debootstrap"
    exit 77
}

root=$(mktemp -d "${TMPDIR:-/var/tmp}/smsim-debian-XXXXXX")
chmod 755 "$root"  # apt downloads as a user of its own
# Nothing of the machine may be below the root when it is removed.
clean_up() {
    mountpoint -q "$root/proc" && umount "$root/proc"
    mountpoint -q "$root/dev" && umount "$root/dev"
    mountpoint -q "$root/proc" || mountpoint -q "$root/dev" || rm -rf --one-file-system "$root" "$root.log"
}
trap clean_up EXIT

# What installs says much: it is shown where it fails.
quietly() {
    "$@" >"$root.log" 2>&1 || {
        tail -n 20 "$root.log" >&2
        exit 4
    }
}

quietly debootstrap --variant=minbase "$suite" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir "$root/check"
cp "$package" "$source/docs/tutorial.md" "$source/tests/docs/check_tutorial.py" "$root/check/"
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }

quietly in_root apt-get update
quietly in_root sh -c 'apt-get install --no-install-recommends -y /check/*.deb'
in_root sh -c 'smsim --version && smplan --version && smexec --version'
# By dpkg's list: roots for containers leave man pages out.
files=$(in_root dpkg -L smsim)
for file in /usr/share/man/man1/smsim.1 /usr/share/bash-completion/completions/smplan /usr/share/smsim/hardware_profiles; do
    grep -qxF "$file" <<<"$files" || {
        echo "the package has no $file" >&2
        exit 1
    }
done
# The tutorial's check is in Python; the tools are not.
quietly in_root apt-get install --no-install-recommends -y python3-minimal libpython3-stdlib
in_root useradd --create-home stranger
in_root su stranger -c 'cd && python3 /check/check_tutorial.py /usr/bin /check/tutorial.md'
