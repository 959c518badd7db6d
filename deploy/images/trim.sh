#!/bin/sh
# Takes off an image what neither program needs: whatever installs or builds, tests, windows, documentation. Works on
# any Debian with a Python, wherever that lies. The package database stays, for scanners.
set -eu

library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
for package in config-3* distutils ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo venv; do
    # shellcheck disable=SC2086 -- one name has a wildcard
    rm -rf "${library:?}"/$package
done
for place in "$library/site-packages" "$library/dist-packages" /usr/lib/python3/dist-packages; do
    for package in pip setuptools wheel pkg_resources _distutils_hack distutils-precedence.pth; do
        rm -rf "$place/$package" "$place/$package"-*.dist-info "$place/$package"-*.egg-info
    done
done
for programs in /usr/local/bin /usr/bin; do
    rm -f "$programs"/pip "$programs"/pip[0-9]* "$programs"/wheel "$programs"/2to3* "$programs"/idle* "$programs"/pydoc*
done
rm -rf /usr/share/python-wheels

# Compiled once, here: with a read-only root Python would do it again at every start.
find "$library" -name '*.pyc' -delete
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$library"

# The system's installers, Perl, which only they use, and the C library's converters: Python brings its own.
rm -rf /usr/bin/apt* /usr/lib/apt /usr/lib/*/libapt-* /etc/apt /var/cache/apt /var/lib/apt \
    /usr/bin/dpkg* /usr/sbin/dpkg* /usr/bin/perl* /usr/lib/*/perl-base /usr/share/perl* /usr/lib/*/gconv \
    /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian /var/cache/debconf /var/log/* /root/.cache
find /usr/share/doc -type f ! -name copyright -delete
find /tmp -mindepth 1 ! -name trim.sh -delete
