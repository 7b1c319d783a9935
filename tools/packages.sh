# Debian and Ubuntu packages by purpose, and how they are installed. Sourced by tools/check and
# tools/quickstart. Debian 12 and Ubuntu 24.04 have all of them under these names.

PACKAGES_BUILD="autoconf automake gcc g++ make pkgconf libc6-dev libfcgi-dev liblmdb-dev
    libcjson-dev libjemalloc-dev libssl-dev libxxhash-dev libsystemd-dev libpcre2-dev"
PACKAGES_RUN="nginx openssl curl ca-certificates"
PACKAGES_CHECK="python3 python3-venv clang clang-format clang-tidy universal-ctags binutils systemd"

# Those of the named packages that are not installed.
packages_missing() {
    local p
    for p in "$@"; do
        dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || echo "$p"
    done
}

# Install what is missing; apt is not called when nothing is. An nginx that this brings to the
# machine is neither started nor enabled: quire starts its own, and port 80 is none of its business.
packages_install() {
    local missing sudo= policy=/usr/sbin/policy-rc.d made=no rc log
    missing=$(packages_missing "$@")
    [ -n "$missing" ] || return 0
    echo "installing: "$missing
    if [ "$(id -u)" -ne 0 ]; then
        sudo=sudo
        command -v sudo >/dev/null || {
            echo "install these packages as root, or install sudo: "$missing >&2
            return 1
        }
    fi
    log=$(mktemp) || return 1
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null && $sudo chmod 755 $policy && made=yes
    fi
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing \
            >"$log" 2>&1
    rc=$?
    [ $made = no ] || $sudo rm -f $policy
    if [ -d /run/systemd/system ] && grep -qx nginx <<<"$missing"; then
        $sudo systemctl disable -q nginx 2>/dev/null
    fi
    [ $rc -eq 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $rc
}
